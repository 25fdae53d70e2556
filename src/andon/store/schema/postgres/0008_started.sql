-- What attempts have started besides tasks: processes, by the mark that they carry, and threads.

ALTER TABLE andon.attempts ADD COLUMN mark bigint;  -- NULL: it has started no process
ALTER TABLE andon.attempts ADD COLUMN threads boolean NOT NULL DEFAULT false;  -- some went on when it ended
ALTER TABLE andon.targets ADD COLUMN mark bigint;   -- what carries it is meant, and not the worker
ALTER TABLE andon.stops ADD COLUMN spare boolean;   -- whether the worker's process is spared, if somebody has said so
ALTER TABLE andon.workers ADD COLUMN embedded boolean NOT NULL DEFAULT false;  -- in a program of somebody's
CREATE INDEX attempts_started ON andon.attempts (worker) WHERE mark IS NOT NULL;
