"""An agent under load, for testbed/e2e.sh: makes alarms over HTTP, and judges the wakes that came of them.

agent.py spread URL LABEL COUNT FIRST STEP    COUNT alarms at once, due every STEP seconds, the first in FIRST seconds
agent.py steady URL LABEL STEP STOP           one alarm every STEP seconds, due a second later, until the file STOP is there
agent.py judge LABEL COUNT [FAULT]            reads the router's wakes from stdin; exits 1 with a sentence if they break a promise

CHRONOS_TOKEN and CHRONOS_AGENT are the two tokens. Every alarm is `LABEL NUMBER`. A call that gets no answer, or one that says
"later", is made again under the same idempotency key, as an agent should.
"""

import http.client
import json
import os
import queue
import statistics
import sys
import threading
import time
import urllib.parse
from datetime import datetime, timezone

AGENTS = 8           # connections that make alarms at once
PATIENCE = 30        # seconds in which a call must have got through


class Caller:
    """One connection, opened anew when it breaks."""

    def __init__(self, url):
        self.host = urllib.parse.urlsplit(url).netloc
        self.connection = None
        self.again = 0
        self.reasons = {}

    def make(self, label, number, due):
        body = json.dumps({
            "kind": "once",
            "fire_at": datetime.fromtimestamp(due, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "label": f"{label} {number}",
            "wake_message": "Under load.",
            "idempotency_key": f"{label} {number}",
        })
        headers = {
            "Authorization": "Bearer " + os.environ["CHRONOS_TOKEN"],
            "X-Chronos-Agent": os.environ["CHRONOS_AGENT"],
            "Content-Type": "application/json",
        }
        until = time.monotonic() + PATIENCE
        while True:
            try:
                if self.connection is None:
                    self.connection = http.client.HTTPConnection(self.host, timeout=10)
                self.connection.request("POST", "/v1/alarms", body, headers)
                answer = self.connection.getresponse()
                said = answer.read()
                if answer.status == 200:
                    return
                if answer.status < 500 and answer.status != 429:
                    sys.exit(f"{label} {number} was refused: {answer.status} {said.decode(errors='replace')}")
                why = str(answer.status)
            except (OSError, http.client.HTTPException) as error:
                why = type(error).__name__
                self.connection = None
            if time.monotonic() > until:
                sys.exit(f"{label} {number} could not be made in {PATIENCE} s: {why}")
            self.again += 1
            self.reasons[why] = self.reasons.get(why, 0) + 1
            time.sleep(0.05)


def spread(url, label, count, first, step):
    count, first, step = int(count), float(first), float(step)
    start = time.time() + first
    numbers = queue.SimpleQueue()
    for number in range(count):
        numbers.put(number)
    failed = []

    def work():
        caller = Caller(url)
        try:
            while True:
                number = numbers.get_nowait()
                caller.make(label, number, start + number * step)
        except queue.Empty:
            pass
        except SystemExit as refused:
            failed.append(refused)

    threads = [threading.Thread(target=work) for _ in range(AGENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit(str(failed[0]))
    made = time.time()
    if made > start:
        sys.exit(f"making {count} alarms took {made - start + first:.0f} s, longer than the {first:.0f} s until the first is due")
    print(f"{start:.3f} {start + (count - 1) * step:.3f}")      # when the first and the last are due


def steady(url, label, step, stop):
    caller, number, step = Caller(url), 0, float(step)
    slowest = 0.0
    while not os.path.exists(stop):
        begun = time.monotonic()
        caller.make(label, number, time.time() + 1)
        number += 1
        took = time.monotonic() - begun
        slowest = max(slowest, took)
        time.sleep(max(0.0, step - took))
    print(json.dumps({"made": number, "again": caller.again, "reasons": caller.reasons, "slowest_seconds": round(slowest, 2)}))


def instant(text):
    """RFC 3339 with any number of digits after the point, as seconds."""
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp() + float("0." + (rest or "0"))


def judge(label, count, fault=None):
    count, fault = int(count), float(fault) if fault else None
    arrivals, first, last = {}, {}, []
    for line in sys.stdin:
        wake = json.loads(line)
        body = wake["body"]
        name = body.get("label", "")
        if not name.startswith(label + " "):
            continue
        received, due = instant(wake["received_at"]), instant(body["scheduled_for"])
        if wake["headers"].get("idempotency-key") != body["delivery_id"]:
            sys.exit(f"{name}: its header names another delivery than its body")
        if received < due:
            sys.exit(f"{name} came {due - received:.3f} s early")
        arrivals.setdefault(name, []).append((received, body["delivery_id"]))
        first[name] = min(received - due, first.get(name, 1e9))
        last.append(received)
    lost = [f"{label} {number}" for number in range(count) if f"{label} {number}" not in arrivals]
    if lost:
        sys.exit(f"{len(lost)} of {count} wakes are lost, among them '{lost[0]}'")
    more = len(arrivals) - count
    if more:
        sys.exit(f"{more} wakes came that nobody asked for")
    repeated, before = 0, 0
    for name, came in arrivals.items():
        if len({delivery for _, delivery in came}) != 1:
            sys.exit(f"{name} came under {len(came)} delivery ids")
        came.sort()
        repeated += len(came) - 1
        before += sum(1 for received, _ in came[1:] if fault is None or received < fault)
    late = sorted(first.values())
    last.sort()
    after = [moment for moment in last if fault is None or moment >= fault - 1]
    pause = max((b - a for a, b in zip(after, after[1:])), default=0.0)
    print(json.dumps({
        "delivered": len(arrivals),
        "repeated": repeated,
        "repeated_before_fault": before,
        "late_median_ms": round(statistics.median(late) * 1000),
        "late_p99_ms": round(late[int(len(late) * 0.99)] * 1000),
        "late_max_s": round(late[-1], 2),
        "longest_pause_s": round(pause, 2),
    }))


if __name__ == "__main__":
    {"spread": spread, "steady": steady, "judge": judge}[sys.argv[1]](*sys.argv[2:])
