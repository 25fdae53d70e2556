-- What attempts have started besides tasks: processes, by the mark that they carry, and threads.

ALTER TABLE andon_attempts ADD COLUMN mark INTEGER;  -- NULL: it has started no process
ALTER TABLE andon_attempts ADD COLUMN threads INTEGER NOT NULL DEFAULT 0;  -- some went on when it ended
ALTER TABLE andon_targets ADD COLUMN mark INTEGER;   -- what carries it is meant, and not the worker
ALTER TABLE andon_stops ADD COLUMN spare INTEGER;    -- whether the worker's process is spared, if somebody has said so
ALTER TABLE andon_workers ADD COLUMN embedded INTEGER NOT NULL DEFAULT 0;  -- in a program of somebody's
CREATE INDEX andon_attempts_started ON andon_attempts (worker) WHERE mark IS NOT NULL;
