-- The shapes of an agent's parameters, by name (JSON): arguments are checked without its code.
-- Registrations of an earlier andon leave it as it is.

ALTER TABLE andon_agents ADD COLUMN types TEXT NOT NULL DEFAULT '{}';
