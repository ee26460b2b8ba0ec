-- What a store says of itself. `compatible_from` is the oldest version whose releases work with these tables, where it is an
-- older one: each later migration sets it, to that version or to its own. `epoch` names this life of the store: another one
-- begins when data was lost. `timeline` is where the database's writes were last seen to go: its cluster, and the timeline in
-- it; empty until a server has looked.

ALTER TABLE mrtr_schema ADD COLUMN compatible_from TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_schema ADD COLUMN epoch TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_schema ADD COLUMN timeline TEXT NOT NULL DEFAULT '';
UPDATE mrtr_schema
SET epoch = lpad(to_hex((random() * 4294967295)::bigint), 8, '0') || lpad(to_hex((random() * 4294967295)::bigint), 8, '0');
