"""Sends a number of requests at once, each over a connection of its own and without retries.

``python burst.py HOST COUNT`` prints the statuses and the seconds of each answer as JSON. Status 0: no complete answer.
"""

import http.client
import json
import sys
import threading
import time

SECONDS = 900.0  # timeout of each request
BODY = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": "Solve: 12 + 30."}]}


def main(host: str, count: int) -> None:
    answers: list[tuple[int, float, str]] = []
    together = threading.Barrier(count)

    def ask() -> None:
        connection = http.client.HTTPConnection(host, timeout=SECONDS)
        together.wait()
        start = time.monotonic()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(BODY), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode()
            json.loads(text)
        except (OSError, ValueError, http.client.HTTPException) as error:
            status, text = 0, repr(error)
        answers.append((status, time.monotonic() - start, text))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([[status, seconds, text if status != 200 else ""] for status, seconds, text in answers]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
