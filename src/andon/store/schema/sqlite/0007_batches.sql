-- How far a step is that says so: JSON with its name, done and total.

ALTER TABLE andon_checkpoints ADD COLUMN progress TEXT;
