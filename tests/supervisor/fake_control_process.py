"""A control process for tests: records the messages it gets, and sends those found in a pipe."""

import json
import os
import select
import sys
import time

folder = sys.argv[1]
wire = int(os.environ["ANDON_SUPERVISOR_FD"])
orders = os.open(os.path.join(folder, "orders"), os.O_RDWR)
events = os.open(os.path.join(folder, "events"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
said = 0.0
while True:
    readable, _, _ = select.select([wire, orders], [], [], 0.05)
    if wire in readable:
        content = os.read(wire, 65536)
        if not content:
            sys.exit(0)
        os.write(events, content)
    if orders in readable:
        os.write(wire, os.read(orders, 65536))
    if time.monotonic() - said > 0.1 and not os.path.exists(os.path.join(folder, "silent")):
        said = time.monotonic()
        os.write(wire, json.dumps({"do": "contact"}).encode() + b"\n")
