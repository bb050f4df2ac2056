-- Fails while a table still has the triggers of fence_table: they are the protection of that table.
drop function "pglock".fence_table(regclass, text);
drop function "pglock".fence_row();
drop function "pglock".fence(text, bigint, bigint);
drop function "pglock".fence_raise(text, bigint);
drop table "pglock".fenced_writes;
delete from "pglock".migrations where version = 2;
