"""Drivers of the kill matrix: one small file for each framework, the same two tools in all of them.

A driver is a module of this folder. It says, at its top level:

    FORMS     the wire formats that the framework speaks, of "anthropic", "chat", "responses"
    KEPT      where it keeps a conversation without andon: ("file",), or ("sqlite", "postgres")
    PACKAGES  the distributions whose versions the page names

    async def plain(shop) -> str        one life of the program without andon, as people write it
    async def with_andon(shop) -> str   the same with andon; a driver may not have it yet

Both return the model's last message. Each is called in a process of its own, with a `Shop`
(shop.py): the first time with `shop.phase == "begin"`, in a process that is killed at some moment;
then once more, in a new process and with nothing of the first but what is on the disk, with

    "resume"    go on with what was begun
    "message"   the person sends `shop.news` in the same conversation, without waiting

A driver uses these members of its shop:

    shop.name           names the conversation: the run's id, the thread; unique
    shop.tools          [charge, mail]: async functions with types and docstrings, not declared
    shop.task           the person's first message
    shop.form           the wire format, and `shop.url` the server that speaks it;
                        `async with shop.client()`: the provider's own client of it
    shop.store          the URL of the store: andon's, or of what the framework keeps
    shop.folder         for files of its own
    shop.checkpoint()   call it just before the framework saves a tool's answer
    shop.keeps("…")     only without andon, and only where the framework saves the result of each
                        parallel tool separately: call it with the tool's name once it has, and
                        set `shop.keeps_each = True` before the tools are called

With andon the tools are called by the adapter, each as an effect of the name that it has here, and
the program waits while a person is asked: the trial answers by looking at the world. `shop.name`
is the run's id, or the prefix of the ids of further runs. After a "message" the first run is
resumed too, as by a worker: it may end or be refused, and must not act twice. A model that was
shown an unknown outcome has to say so. An adapter has to do nothing else.

    python verify/matrix.py --only langgraph --with --verbose
"""
