-- The fence alone: what a database needs that holds protected resources, whether or not it is the one that grants locks.
do $pglock$
begin
  perform pg_catalog.pg_advisory_xact_lock_shared(1885826155, 0);
  if not exists (select from pg_catalog.pg_locks l
                  where l.locktype = 'advisory' and l.pid = pg_catalog.pg_backend_pid() and l.classid = 1885826155 and l.objid = 0) then
    raise exception using errcode = 'PLS01', message = 'pg_advisory_xact_lock_shared returned and pg_locks shows no lock';
  end if;
  if to_regnamespace('"pglock"') is null then
    create schema "pglock";
  end if;
end
$pglock$;

create table if not exists "pglock".migrations (
  version    integer primary key,
  applied_at timestamptz not null default pg_catalog.clock_timestamp()
);
insert into "pglock".migrations (version) values (2);

create table "pglock".fenced_writes (
  resource   text primary key,
  token      bigint not null check (token > 0),
  written_at timestamptz not null
);

-- fence lets the transaction go on if no higher token was accepted or claimed for the resource, and aborts it otherwise.
-- Only a new token writes the row. An equal one shares an advisory lock of the resource until its transaction ends, and is compared
-- again once it does, in a statement and so a snapshot of its own; a new one takes that lock alone. A lock of the row itself would be
-- written to the log in each write, and is not fair: those who come share it past one who waits to raise it, for as long as
-- they come. Every name is qualified, so that it needs no search_path, which would cost a third of the call. idle_ms bounds how long a
-- writer that stops between two statements can keep its successor waiting.
create function "pglock".fence(resource text, token bigint, idle_ms bigint default null) returns void
language plpgsql volatile
as $pglock$
declare
  highest bigint;
  ignored pg_catalog.text;
  idle pg_catalog.text := pg_catalog.current_setting('idle_in_transaction_session_timeout');
begin
  if fence.idle_ms operator(pg_catalog.>) 0
      and (idle operator(pg_catalog.=) '0'
           or extract(epoch from idle::pg_catalog.interval) operator(pg_catalog.*) 1000 operator(pg_catalog.>) fence.idle_ms) then
    ignored := pg_catalog.set_config('idle_in_transaction_session_timeout', fence.idle_ms::pg_catalog.text, true);
  end if;
  for look in 1 .. 2 loop -- one statement, so that warm_up, which has no token, has it planned
    select f.token into highest from "pglock".fenced_writes f
     where f.resource operator(pg_catalog.=) fence.resource collate pg_catalog."default"; -- not the caller's
    exit when coalesce(highest operator(pg_catalog.<>) fence.token, true);
    if look operator(pg_catalog.=) 2 then
      return;
    end if;
    ignored := pg_catalog.pg_advisory_xact_lock_shared(1885826155, pg_catalog.hashtext(fence.resource collate pg_catalog."C"));
    exit when pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.<>) 'read committed'
           or pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.<>) 'off';
  end loop;
  perform "pglock".fence_raise(fence.resource, fence.token);
end
$pglock$;

-- fence_raise is fence for whatever is not usual: a token that is not the highest, a transaction whose snapshot is older than its lock,
-- and one that may not write, which is an error. There an equal token has to share the row too, which fails if the row has changed
-- since. Whoever shares the lock already does not ask for it alone, which deadlocks: where the resource was pruned meanwhile it puts
-- its row back, and raises none.
create function "pglock".fence_raise(resource text, token bigint) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
declare
  resource_key integer := hashtext(fence_raise.resource collate "C");
  highest bigint;
  shares boolean := false;
begin
  if fence_raise.token is null or fence_raise.token < 1 then
    raise exception using errcode = 'PLF02', message = 'pglock: no fencing token',
      hint = 'A lock in shared mode has none; a write is protected only by the token of an exclusive lock.';
  end if;
  if fence_raise.resource is null or fence_raise.resource = '' then
    raise exception using errcode = 'PLF02', message = 'pglock: no resource to fence';
  end if;
  select f.token into highest from "pglock".fenced_writes f where f.resource = fence_raise.resource collate "default";
  if highest is null then
    shares := exists (select from pg_locks l
                       where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted and l.objsubid = 2
                         and l.classid = 1885826155 and l.objid = (resource_key::bigint & 4294967295)::oid);
  end if;
  if highest = fence_raise.token then
    perform pg_advisory_xact_lock_shared(1885826155, resource_key);
  elsif shares then
    insert into "pglock".fenced_writes (resource, token, written_at)
    values (fence_raise.resource, fence_raise.token, clock_timestamp())
    on conflict do nothing;
  elsif highest is null or highest < fence_raise.token then
    perform pg_advisory_xact_lock(1885826155, resource_key);
    insert into "pglock".fenced_writes as f (resource, token, written_at)
    values (fence_raise.resource, fence_raise.token, clock_timestamp())
    on conflict on constraint fenced_writes_pkey do update
       set token = excluded.token, written_at = excluded.written_at
     where f.token < excluded.token;
  end if;
  select f.token into highest from "pglock".fenced_writes f where f.resource = fence_raise.resource collate "default" for share;
  if highest is null or shares and highest < fence_raise.token then
    raise exception using errcode = '40001', message = format('pglock: %s was pruned meanwhile: try again', fence_raise.resource);
  end if;
  if highest is distinct from fence_raise.token then
    raise exception using errcode = 'PLF01',
      message = format('pglock: stale fencing token %s for %s: %s was accepted', fence_raise.token, fence_raise.resource, highest),
      detail = format('token=%s highest=%s resource=%s', fence_raise.token, highest, fence_raise.resource);
  end if;
end
$pglock$;

-- fence_row is the same rule inside a table with a token column of its own. fence_table puts it on a table. The first of
-- its two triggers fires only for an UPDATE that names the column, and marks the row by negating the token: without it an
-- UPDATE that leaves the column out would keep the old token and look equal. Triggers fire in the order of their names.
create function "pglock".fence_row() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $pglock$
declare
  col text := tg_argv[1];
  given bigint := (to_jsonb(new) ->> col)::bigint;
  highest bigint;
begin
  if tg_argv[0] = 'named' or tg_op = 'INSERT' then
    if given is null or given < 1 then
      raise exception using errcode = 'PLF02',
        message = format('pglock: no fencing token in column %I of %I.%I', col, tg_table_schema, tg_table_name);
    end if;
    if tg_op = 'INSERT' then
      return new;
    end if;
    return jsonb_populate_record(new, jsonb_build_object(col, -given));
  end if;
  if given is null or given > 0 then
    raise exception using errcode = 'PLF02',
      message = format('pglock: an UPDATE of %I.%I must set column %I to its fencing token', tg_table_schema, tg_table_name, col);
  end if;
  given := -given;
  highest := (to_jsonb(old) ->> col)::bigint;
  if highest > given then
    raise exception using errcode = 'PLF01',
      message = format('pglock: stale fencing token %s for a row of %I.%I: %s was accepted',
                       given, tg_table_schema, tg_table_name, highest),
      detail = format('token=%s highest=%s resource=%I.%I', given, highest, tg_table_schema, tg_table_name);
  end if;
  return jsonb_populate_record(new, jsonb_build_object(col, given));
end
$pglock$;

-- Where the table is fenced by that column already fence_table changes nothing, so that it may be called at each start of a service.
create function "pglock".fence_table(target regclass, column_name text default 'fencing_token') returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $pglock$
begin
  if exists (select from pg_trigger t
              where t.tgrelid = target and t.tgname = 'pglock_fence_2' and t.tgfoid = '"pglock".fence_row()'::regprocedure
                and t.tgargs = 'check' || decode('00', 'hex') || convert_to(column_name, getdatabaseencoding()) || decode('00', 'hex')) then
    return;
  end if;
  execute format('create trigger pglock_fence_1 before update of %I on %s for each row execute function %s.fence_row(%L, %L)',
                 column_name, target, '"pglock"', 'named', column_name);
  execute format('create trigger pglock_fence_2 before insert or update on %s for each row execute function %s.fence_row(%L, %L)',
                 target, '"pglock"', 'check', column_name);
end
$pglock$;
