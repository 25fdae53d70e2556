-- What an attempt had in hand, and how far it had come, when its worker was lost.

ALTER TABLE andon_attempts ADD COLUMN checkpoint TEXT;  -- digest of the run's checkpoints, if it finished no step
ALTER TABLE andon_attempts ADD COLUMN hands TEXT;       -- JSON list: places of the steps it was last seen to execute
