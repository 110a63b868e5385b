"""A local HTTP server that answers as SGLang does, or fails in one chosen way.

As a program (`python fake_server.py PORT`) it is the server process that serve.sh starts.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHAT = "/v1/chat/completions"


@dataclass
class Fake:
    """How the server answers.

    Attributes:
        patches: what each part of /server_info says of the patches; None for a stock server.
        failing: path -> how its answers fail: "empty", "half", "no json", "error", "refuse",
            "hang", "drip", "cut", "chunk", "page", "page with 200", "unknown".
        generate: prompt text or ids -> the tokens and gaps of /generate.
        parts_at: with factor 2, the place of random tokens at which another one is the best.
        lives_for: requests of /generate that it answers before it is gone.
        rows_end: how rows of a streamed /generate fail: "short", "at once", "one row", "no index".
        trace: what /start_profile leaves: "steps", "no steps", "half", "none".
    """

    patches: list[dict | None] = field(default_factory=lambda: [None])
    architecture: str = "DeepseekV4ForCausalLM"
    healthy: bool = True
    failing: dict[str, str] = field(default_factory=dict)
    splits_reasoning: bool = True
    parses_tools: bool = True
    factor: int = 1
    lead: float = 1.0
    tokens_per_word: float = 1.3
    finish: str = "stop"
    generate: dict = field(default_factory=dict)
    tokenizer: str | None = "a-hub/a-model"
    shift: float = 0.0
    other_over: int | None = None
    parts_at: int = 9
    tells_logprobs: bool = True
    lives_for: int | None = None
    rows_end: str | None = None
    trace: str = "steps"
    model_path: str = "/home/user/model"
    settings: dict = field(default_factory=dict)
    asked: list[tuple[str, dict | None]] = field(default_factory=list)
    most_at_once: int = 0

    def __post_init__(self):
        self._lock = threading.Lock()
        self._now = 0

    def chat(self, body: dict) -> dict:
        """The message for a request, with the number of tokens of its prompt."""
        question = body["messages"][0]["content"]
        tokens = int(len(question.split()) * self.tokens_per_word)
        message = {"role": "assistant", "content": "", "reasoning_content": None}
        if body.get("tools") and "weather" in question:
            call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
            if self.parses_tools:
                message["tool_calls"] = [
                    {"id": "1", "type": "function", "function": call}
                ]
            else:
                message["content"] = f"<call>{json.dumps(call)}</call>"
            return message | {"tokens": tokens}
        product = re.search(r"What is (\d+)\*(\d+)", question)
        code = re.search(r"vault is (\d+)", question)
        answer = (
            str(int(product[1]) * int(product[2]) * self.factor) if product else code[1]
        )
        message["content"] = answer
        if body.get("chat_template_kwargs", {}).get("thinking"):
            if self.splits_reasoning:
                message["reasoning_content"] = "17 times 20 and 17 times 3"
            else:
                message["content"] = f"17 times 20</think>{answer}"
        return message | {"tokens": tokens}

    def generated(self, body: dict) -> object:
        """The answer of /generate for a text or a list of ids."""
        if "text" in body:
            return self._one(self.generate[body["text"]])
        count = body["sampling_params"]["max_new_tokens"]
        return [self._random(ids, count) for ids in body["input_ids"]]

    def _random(self, ids: list[int], count: int) -> dict:
        """Tokens first, first + 1...; with factor 2 the second best at one place."""
        first, tokens, best = sum(ids) % 300, [], []
        likely = -1.0
        if self.other_over is not None and len(ids) > self.other_over:
            # Without a shift other tokens come, with one the same, less likely.
            likely, first = likely - self.shift, first + (0 if self.shift else 500)
        for place in range(count):
            ranked = [first + place, first + place + 1]
            if self.factor == 2 and place == self.parts_at:
                ranked.reverse()
            tokens.append([likely, ranked[0], None])
            best.append(
                [[likely, ranked[0], None], [likely - self.lead, ranked[1], None]]
            )
        meta = {"output_token_logprobs": tokens, "output_top_logprobs": best}
        return {"meta_info": meta if self.tells_logprobs else {}}

    def streamed_rows(self, body: dict):
        """The events of a list: the first token of each row, then all of them."""
        tokens = body["sampling_params"]["max_new_tokens"]
        rows = len(body["input_ids"])
        if self.rows_end == "one row":
            rows -= 1
        counts = (1, tokens - (self.rows_end == "short"))
        for made in counts[self.rows_end == "at once" :]:
            for row in range(rows):
                ended = {"type": "length"} if made > 1 else None
                meta = {"completion_tokens": made, "finish_reason": ended}
                event = {"index": row, "meta_info": meta}
                if self.rows_end == "no index":
                    del event["index"]
                yield event

    def leave_trace(self, body: dict) -> None:
        """What the profiler writes: kernels, three a step, of which the last chooses the token."""
        names = ("gemm", "attention", "ArgMax")
        if self.trace == "no steps":
            names = ("gemm", "attention", "copy")
        events = [
            {"cat": "kernel", "name": name, "ts": 50 * step + 10 * at, "dur": 5 + at}
            # As SGLang's, which stops before the last.
            for step in range(body["num_steps"] - 1)
            for at, name in enumerate(names)
        ]
        data = gzip.compress(json.dumps({"traceEvents": events}).encode())
        if self.trace == "half":
            data = data[: len(data) // 2]
        if self.trace != "none":
            place = Path(body["output_dir"]) / "1-TP-0.trace.json.gz"
            place.write_bytes(data)

    def _one(self, known: dict) -> dict:
        gaps = [gap + self.shift for gap in known["gaps"]]
        return {
            "text": known["text"],
            "meta_info": {
                "finish_reason": {"type": self.finish},
                "prompt_tokens": known["prompt_tokens"],
                "output_token_logprobs": [[0.0, id, None] for id in known["ids"]],
                "output_top_logprobs": [
                    [[0.0, id, None], [-gap, 0, None]]
                    for id, gap in zip(known["ids"], gaps)
                ],
            },
        }

    @contextmanager
    def counted(self):
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1


class _Handler(BaseHTTPRequestHandler):
    fake: Fake

    def do_GET(self):
        self._answer(self.path, None)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(self.path, body)

    def _answer(self, path: str, body: dict | None) -> None:
        fake = self.fake
        fake.asked.append((path, body))
        how = fake.failing.get(path)
        if how == "hang":
            return time.sleep(30)
        if how == "refuse":
            return self._send({"error": {"message": "no room for this"}}, 500)
        if how == "page with 200":
            return self._raw(b"\n<html>\n<body>a portal</body></html>")
        if how == "chunk":
            return self._chunk()
        if how == "page":
            page = f"<!DOCTYPE HTML>\n<title>Error</title>{'<p>not found' * 30}"
            return self._raw(page.encode(), 404)
        if how == "unknown":
            return self._send({"detail": "Not Found"}, 404)
        if how == "no json":
            return self._raw(b"<html>it works</html>")
        if how == "cut":
            return self._cut(b'{"choices": [')
        if how == "drip":
            return self._drip()
        if path == "/health":
            return self._raw(b"") if fake.healthy else self._send({}, 503)
        if path == "/server_info":
            return self._send(
                {
                    "version": "0.5.13",
                    "tp_size": 2,
                    # As SGLang's is by default: the path of the model.
                    "served_model_name": fake.model_path,
                    "api_key": "secret-of-the-user",
                    "model_path": fake.model_path,
                    "tokenizer_path": fake.tokenizer,
                    **fake.settings,
                    "internal_states": [
                        {} if part is None else {"sm120_patches": part}
                        for part in fake.patches
                    ],
                }
            )
        if path == "/model_info":
            architectures = [fake.architecture]
            return self._send({"model_path": "/m", "architectures": architectures})
        if path == "/v1/models":
            return self._send({"data": [{"id": "tiny"}]})
        with fake.counted():
            time.sleep(0.02)
            if path == "/start_profile":
                fake.leave_trace(body)
                return self._raw(b"Start profiling.\n")
            if path == "/generate" and self._is_gone():
                return self.connection.shutdown(socket.SHUT_RDWR)
            if path == "/generate" and body.get("stream"):
                return self._stream_rows(body, how)
            if path == "/generate":
                return self._send(fake.generated(body))
            if body.get("stream"):
                return self._stream(fake.chat(body), how)
            return self._whole(fake.chat(body), how)

    def _whole(self, message: dict, how: str | None) -> None:
        tokens = message.pop("tokens")
        if how == "empty":
            message["content"] = ""
        choice = {"message": message, "finish_reason": self.fake.finish}
        self._send({"choices": [choice], "usage": {"prompt_tokens": tokens}})

    def _stream(self, message: dict, how: str | None) -> None:
        self._head("text/event-stream")
        content = "" if how == "empty" else message["content"]
        for piece in content:
            self._event({"choices": [{"delta": {"content": piece}}]})
            if how == "half":
                return
            if how == "error":
                return self._event({"error": {"message": "the scheduler died"}})
        last = {"delta": {}, "finish_reason": self.fake.finish}
        usage = {"prompt_tokens": message["tokens"]}
        self._event({"choices": [last], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _is_gone(self) -> bool:
        asked = [path for path, _ in self.fake.asked if path == "/generate"]
        return self.fake.lives_for is not None and len(asked) > self.fake.lives_for

    def _stream_rows(self, body: dict, how: str | None) -> None:
        self._head("text/event-stream")
        for event in self.fake.streamed_rows(body):
            self._event(event)
            if how == "error":
                return self._event({"error": {"message": "the scheduler died"}})
            time.sleep(0.001)
        if how != "half":
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def _send(self, answer: object, status: int = 200) -> None:
        self._raw(json.dumps(answer).encode(), status)

    def _raw(self, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _head(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def _cut(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data) + 100))
        self.end_headers()
        self.wfile.write(data)

    def _chunk(self) -> None:
        """The begin of an answer in chunks, whose second one has no length."""
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"2\r\n{}\r\n")
        self.close_connection = True

    def _drip(self) -> None:
        self._head("application/json")
        for _ in range(300):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)

    def log_message(self, *_):
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        """A client that gives up is what the tests are about."""


@contextmanager
def serving(fake: Fake, port: int = 0):
    """The URL of a server that answers as `fake` says."""
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    with serving(Fake(), int(sys.argv[1])):
        threading.Event().wait()
