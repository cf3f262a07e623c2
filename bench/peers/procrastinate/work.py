# Procrastinate, as its documentation has it. Called by `peer`.
import asyncio
import json
import logging
import platform
import signal
import sys
from importlib.metadata import version

import aiohttp
import procrastinate
import uvloop

# A worker asks for one job at a time and waits for the answer before it asks again: hence several of them in the process.
CONFIGS = {
    "fast": {
        "workers": 8,
        "pool": {"min_size": 40, "max_size": 40},
        "autocommit": True,
        "uvloop": True,
        "worker": {"concurrency": 12, "fetch_job_polling_interval": 0.1, "delete_jobs": "successful"},
    },
    "default": {"workers": 1, "pool": {}, "autocommit": False, "uvloop": False, "worker": {}},
}
SOURCES = {
    "fast": "howto: 'Launch a worker ... Inside an application', 'Concurrency', 'Delete finished jobs'; discussions: 'Mind the size of your PostgreSQL pool'; a poll every 0.1 s for jobs of the future",
    "default": "quickstart: only the connection and the task; one job at a time, a poll every 5 s, jobs that are done stay",
}


class Sink:
    """POSTs the arguments of a job; `-` does nothing."""

    def __init__(self, url, connections):
        self.url = url
        self.session = None if url == "-" else aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections))

    async def send(self, body):
        if not self.session:
            return
        headers = {
            "content-type": "application/json",
            "authorization": "Bearer bench-wake-token-0123456789",
            "idempotency-key": body["delivery_id"],
            "ce-id": body["delivery_id"],
            "ce-time": body["scheduled_for"],
        }
        async with self.session.post(self.url, data=json.dumps(body), headers=headers, allow_redirects=False) as answer:
            await answer.read()
            if not 200 <= answer.status <= 299:
                raise RuntimeError(f"the sink answered {answer.status}")

    async def close(self):
        if self.session:
            await self.session.close()


async def set_autocommit(connection):
    await connection.set_autocommit(True)


def application(uri, config):
    configure = {"configure": set_autocommit} if config["autocommit"] else {}
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=uri, **config["pool"], **configure))


async def work(uri, config, sink):
    app = application(uri, config)
    sink = Sink(sink, config["workers"] * config["worker"].get("concurrency", 1))
    worked = 0

    @app.task(name="wake")
    async def wake(**body):
        nonlocal worked
        worked += 1
        await sink.send(body)

    async with app.open_async():
        workers = [
            asyncio.create_task(app.run_worker_async(install_signal_handlers=False, **config["worker"]))
            for _ in range(config["workers"])
        ]
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: [worker.cancel() for worker in workers])
        print("ready", flush=True)
        outcomes = await asyncio.gather(*workers, return_exceptions=True)
    await sink.close()
    for outcome in outcomes:
        if not isinstance(outcome, asyncio.CancelledError):
            raise outcome or RuntimeError("a worker ended by itself")
    print(f"worked {worked}", flush=True)


async def migrate(uri):
    async with application(uri, CONFIGS["default"]).open_async() as app:
        await app.schema_manager.apply_schema_async()


def main(word, *rest):
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)  # it has a line for every job that fails
    if word == "version":
        print(f"procrastinate {version('procrastinate')}, Python {platform.python_version()}")
    elif word == "config":
        print(f"{json.dumps(CONFIGS[rest[0]])} ({SOURCES[rest[0]]})")
    elif word == "migrate":
        asyncio.run(migrate(*rest))
    elif word == "work":
        uri, config, sink = rest
        (uvloop.run if CONFIGS[config]["uvloop"] else asyncio.run)(work(uri, CONFIGS[config], sink))


main(*sys.argv[1:])
