"""Restate's server from npm: the admin API's cancel and kill.

docs.restate.dev, "Managing Invocations": `restate invocations cancel ID` is PATCH
/invocations/ID/cancel ("cooperates with your handler code", "non-blocking"); `kill` "does not
guarantee consistency". Both are measured. The handler awaits one `ctx.run_typed`, whose sync
functions the SDK runs in a thread. The service is served by hypercorn (HTTP/2), as its docs say.
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import restate
import servers
from driver import Driver, free_port, main, spawn, until
from servers import ask
from stamps import async_step, blocked_step, stubborn_step, sync_step

service = restate.Service("stops")


@service.handler(name="async")
async def async_(ctx: restate.Context, stamps: str) -> str:
    return await ctx.run_typed("step", async_step, path=stamps)


@service.handler(name="stubborn")
async def stubborn_(ctx: restate.Context, stamps: str) -> str:
    return await ctx.run_typed("step", stubborn_step, path=stamps)


@service.handler(name="sync")
async def sync_(ctx: restate.Context, stamps: str) -> str:
    return await ctx.run_typed("step", sync_step, path=stamps)


@service.handler(name="blocked")
async def blocked_(ctx: restate.Context, stamps: str) -> str:
    return await ctx.run_typed("step", blocked_step, path=stamps)


app = restate.app([service])


class OnRestate(Driver):
    ended = ("cancelled", "killed", "succeeded")

    def open(self) -> dict[str, str]:
        self.admin, self.ingress = servers.restate(self.folder)
        served = free_port()
        spawn(
            [sys.executable, "-m", "hypercorn", "--bind", f"127.0.0.1:{served}", "on_restate:app"],
            self.folder,
            PYTHONPATH=str(Path(__file__).parent),
        )
        place = {"uri": f"http://127.0.0.1:{served}"}
        until(lambda: ask("POST", f"{self.admin}/deployments", place)[0] < 300, "the deployment")
        return {
            "restate-sdk": version("restate-sdk"),
            "restate-server": os.environ["STOPS_RESTATE_VERSION"],
        }

    def start(self, kind: str, stamps: str) -> Any:
        send = f"{self.ingress}/stops/{kind}/send"
        return until(lambda: ask("POST", send, stamps)[1]["invocationId"], "the invocation")

    def stop(self, run: Any) -> None:
        status, answer = ask("PATCH", f"{self.admin}/invocations/{run}/{self.way}")
        assert status < 300, answer

    def says(self, run: Any) -> str:
        status, answer = ask("GET", f"{self.ingress}/restate/invocation/{run}/output")
        if status == 470:
            return "running"
        if status == 200:
            return "succeeded"
        return "cancelled" if "cancel" in str(answer) else "killed"


if __name__ == "__main__":
    main(OnRestate)
