-- What a store says of itself. `compatible_from` is the oldest version whose releases work with these tables, where it is an
-- older one: each later migration sets it, to that version or to its own. `epoch` names this life of the store: another one
-- begins when data was lost.

ALTER TABLE mrtr_schema ADD COLUMN compatible_from TEXT NOT NULL DEFAULT '';
ALTER TABLE mrtr_schema ADD COLUMN epoch TEXT NOT NULL DEFAULT '';
UPDATE mrtr_schema SET epoch = lower(hex(randomblob(8)));
