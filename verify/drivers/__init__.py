"""Drivers of the kill matrix: one small file for each framework, the same two tools in all of them.

A driver is a module of this folder. It says, at its top level:

    FORMS     the wire formats that the framework speaks, of "anthropic", "chat", "responses"
    KEPT      where it keeps a conversation without andon: ("file",), or ("sqlite", "postgres")
    PACKAGES  the distributions whose versions the page names

    async def plain(shop) -> str        one life of the program without andon, as people write it
    async def with_andon(shop) -> str   the same with andon; a driver may not have it yet

Both answer what the model said last. Each is called in a process of its own, with a `Shop`
(shop.py): the first time with `shop.phase == "begin"`, in a process that is killed at some moment;
then once more, in a new process and with nothing of the first but what is on the disk, with

    "resume"    go on with what was begun
    "message"   the person does not wait for it: `shop.news` is said instead, in the same talk

What a driver takes from its shop:

    shop.name           names the conversation: the run's id, the thread; unique
    shop.tools          [charge, mail]: async functions with types and docstrings, not declared
    shop.task           what the person says first
    shop.form           the wire format, and `shop.url` the server that speaks it;
                        `async with shop.client()`: the provider's own client of it
    shop.store          the URL of the store: andon's, or of what the framework keeps
    shop.folder         for files of its own
    shop.checkpoint()   call it just before the framework keeps what a tool answered
    shop.keeps("…")     only without andon, and only where the framework keeps the result of each
                        parallel tool for itself: call it with the tool's name once it has, and
                        set `shop.keeps_each = True` before the tools are called

With andon the tools are called by the adapter, each as an effect of the name that it has here, and
the program waits while a person is asked: the trial answers by looking at the world. `shop.name`
is the run's id, or what ids of further runs begin with. After a "message" the first run is gone on
with too, as a worker would: it may end, or be refused, and must not act twice. Where the model was
told that an outcome is unknown, that is what it has to say. Nothing else is asked of an adapter.

    python verify/matrix.py --only langgraph --with --verbose
"""
