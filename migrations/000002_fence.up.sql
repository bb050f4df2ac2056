-- The fence alone: what a database needs that holds protected resources, whether or not it is the one that grants locks.
do $pglock$
begin
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
-- Only a new token writes the row: an upsert in each write would queue one leader's own writers behind each other. An equal
-- token shares the row, and is compared again once it does. A row is never shared first and raised later, which deadlocks.
-- idle_ms bounds how long a writer that stops between two statements can keep its successor waiting for the row.
create function "pglock".fence(resource text, token bigint, idle_ms bigint default null) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
declare
  highest bigint;
  ignored text;
  idle text := current_setting('idle_in_transaction_session_timeout');
begin
  if fence.idle_ms > 0 and (idle = '0' or extract(epoch from idle::interval) * 1000 > fence.idle_ms) then
    ignored := set_config('idle_in_transaction_session_timeout', fence.idle_ms::text, true);
  end if;
  -- The usual case in one statement. It comes before the checks so that warm_up, which has no token, has it planned.
  perform from "pglock".fenced_writes f where f.resource = fence.resource and f.token = fence.token for share;
  if found then
    return;
  end if;
  if fence.token is null or fence.token < 1 then
    raise exception using errcode = 'PLF02', message = 'pglock: no fencing token',
      hint = 'A lock in shared mode has none; a write is protected only by the token of an exclusive lock.';
  end if;
  if fence.resource is null then
    raise exception using errcode = 'PLF02', message = 'pglock: no resource to fence';
  end if;
  select f.token into highest from "pglock".fenced_writes f where f.resource = fence.resource;
  if highest is null or highest < fence.token then
    insert into "pglock".fenced_writes as f (resource, token, written_at)
    values (fence.resource, fence.token, clock_timestamp())
    on conflict on constraint fenced_writes_pkey do update
       set token = excluded.token, written_at = excluded.written_at
     where f.token < excluded.token;
  end if;
  select f.token into highest from "pglock".fenced_writes f where f.resource = fence.resource for share;
  if highest is distinct from fence.token then
    raise exception using errcode = 'PLF01',
      message = format('pglock: stale fencing token %s for %s: %s was accepted', fence.token, fence.resource, highest),
      detail = format('token=%s highest=%s resource=%s', fence.token, highest, fence.resource);
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

create function "pglock".fence_table(target regclass, column_name text default 'fencing_token') returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $pglock$
begin
  execute format('create trigger pglock_fence_1 before update of %I on %s for each row execute function %s.fence_row(%L, %L)',
                 column_name, target, '"pglock"', 'named', column_name);
  execute format('create trigger pglock_fence_2 before insert or update on %s for each row execute function %s.fence_row(%L, %L)',
                 target, '"pglock"', 'check', column_name);
end
$pglock$;
