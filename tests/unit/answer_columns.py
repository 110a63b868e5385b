"""The columns of docs/tried.md's tables of a smoke model's answers: the groups of prompts that each sums up."""

COLUMNS = (
    ("products",),
    tuple(f"needles {length}" for length in (600, 1500, 2500, 4000, 6000)),
    *(
        (f"needles {kind}",)
        for kind in ("at 2048", "early", "among 2", "among 4", "to 30000")
    ),
    ("reasoning", "tool call"),
)
