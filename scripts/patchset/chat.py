"""Questions to a model through /v1/chat/completions, whole and streamed."""

from __future__ import annotations

from dataclasses import dataclass, field

from .askserver import Server
from .errors import Exit, Failure

PATH = "/v1/chat/completions"


@dataclass
class Answer:
    """One answer: content without the reasoning, and how many tokens the prompt had."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict] = field(default_factory=list)
    finish: str | None = None
    prompt_tokens: int = 0

    def require_some(self) -> None:
        """Raise Failure(SERVER) for an answer with nothing in it, or that the server gave up."""
        if self.finish in (None, "abort"):
            raise failure(f"the answer was not finished (finish_reason: {self.finish})")
        if not (self.content.strip() or self.tool_calls or self.reasoning.strip()):
            raise failure(f"the answer is empty (finish_reason: {self.finish})")


class Chat:
    """A conversation of one question at a time, greedy, with the model of this name."""

    def __init__(self, server: Server, model: str):
        self._server = server
        self._model = model

    def ask(self, question: str, *, tokens: int = 64, **options) -> Answer:
        """The answer to one question; options are further fields of the request."""
        body = self._server.post(PATH, self._body(question, tokens, options))
        try:
            choice, usage = body["choices"][0], body.get("usage") or {}
            message = choice["message"]
            answer = Answer(
                content=message.get("content") or "",
                reasoning=message.get("reasoning_content") or "",
                tool_calls=message.get("tool_calls") or [],
                finish=choice.get("finish_reason"),
                prompt_tokens=usage.get("prompt_tokens", 0),
            )
        except (TypeError, KeyError, IndexError, AttributeError):
            raise failure(f"{PATH} answered without a choice: {body!r:.300}") from None
        answer.require_some()
        return answer

    def ask_streamed(self, question: str, *, tokens: int = 64, **options) -> Answer:
        """The same in pieces, put together. Raises Failure when the stream breaks off."""
        options["stream_options"] = {"include_usage": True}
        answer = Answer()
        for event in self._server.stream(PATH, self._body(question, tokens, options)):
            usage = event.get("usage") or {}
            answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
            for choice in event.get("choices") or []:
                delta = choice.get("delta") or {}
                answer.content += delta.get("content") or ""
                answer.reasoning += delta.get("reasoning_content") or ""
                answer.tool_calls += delta.get("tool_calls") or []
                answer.finish = choice.get("finish_reason") or answer.finish
        answer.require_some()
        return answer

    def _body(self, question: str, tokens: int, options: dict) -> dict:
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": tokens,
            **options,
        }


def failure(what: str, next: str = "look into the server's log") -> Failure:
    """A Failure(SERVER) about what a model said."""
    state = "the server was only asked; nothing was changed"
    return Failure(Exit.SERVER, what, state=state, next=next)
