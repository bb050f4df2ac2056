-- Tokens start again from 1 when the schema is created again: fences that were raised in other databases then refuse every
-- write. The schema itself stays, since an administrator may have made it.
drop function "pglock".key(text, text);
drop function "pglock".warm_up(bigint, text[]);
drop function "pglock".wait(integer, text, integer, bigint, smallint);
drop function "pglock".exchange(integer, bigint[], boolean, bigint[]);
drop function "pglock".unlock_one(integer, bigint, boolean);
drop function "pglock".take_one(integer, bigint, text);
drop function "pglock".acquire_one(integer, bigint, integer, text, boolean);
drop function "pglock".lock_tx(bigint, smallint, integer);
drop function "pglock".work(bigint, text, integer, text, boolean, bigint[], smallint[], bigint[], smallint[], integer);
drop function "pglock".acquire(bigint, text, text[], boolean, boolean, bigint[], smallint[], integer);
drop function "pglock".take(bigint[], smallint[], integer);
drop function "pglock".draw(boolean[], smallint[]);
drop function "pglock".token(boolean);
drop function "pglock".undo(bigint[], smallint[]);
drop function "pglock".unlock(bigint[], smallint[]);
drop function "pglock".new_reign();
drop table "pglock".reign;
drop sequence "pglock".tokens;
drop table "pglock".migrations;
