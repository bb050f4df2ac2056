-- The schema is named by the quoted identifier "pglock" wherever it is meant, and nowhere else: Migrate replaces that
-- token when another schema is configured. Files that have been released are never edited; a change is a new file.

do $pglock$
begin
  -- CREATE SCHEMA IF NOT EXISTS asks for CREATE on the database even where the schema is there already.
  if to_regnamespace('"pglock"') is null then
    create schema "pglock";
  end if;
end
$pglock$;

create table if not exists "pglock".migrations (
  version    integer primary key,
  applied_at timestamptz not null default pg_catalog.clock_timestamp()
);
insert into "pglock".migrations (version) values (1);

-- CACHE 1: sessions that draw blocks of numbers hand them out in an order of their own, and a later grant could get a
-- lower token.
create sequence "pglock".tokens as bigint minvalue 1 cache 1 no cycle;

-- One row: the life of the server and of this database that it was last raised in, and what every token of that life is
-- raised by. A sequence alone goes back after a crash, a promotion, a restore. stats_reset changes when shared memory is
-- built anew, also in a crash that the postmaster survives; database_id differs in a copy of the database, and written_by,
-- the transaction that wrote the row, from that row's xmin where the row came out of a dump.
create table "pglock".reign (
  one         boolean primary key default true check (one),
  created_at  timestamptz not null default pg_catalog.clock_timestamp(),
  started_at  timestamptz not null,
  stats_reset timestamptz not null,
  database_id oid not null,
  written_by  xid not null,
  base        bigint not null
);

insert into "pglock".reign (started_at, stats_reset, database_id, written_by, base)
  select pg_catalog.pg_postmaster_start_time(),
         coalesce(pg_catalog.pg_stat_get_bgwriter_stat_reset_time(), '-infinity'),
         d.oid, pg_catalog.pg_current_xact_id()::xid, 0
    from pg_catalog.pg_database d where d.datname = pg_catalog.current_database();

-- new_reign runs in a transaction of its own, before any lock is taken, and is durable before anybody can see it. Only the
-- first caller of a life changes anything. It has its owner's rights so that drawing tokens needs no UPDATE.
create function "pglock".new_reign() returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $pglock$
  update "pglock".reign r
     set base = greatest(r.base + (1::bigint << 20),
                         floor(extract(epoch from clock_timestamp() - r.created_at) * 1000)::bigint << 10),
         started_at = pg_postmaster_start_time(),
         stats_reset = coalesce(pg_stat_get_bgwriter_stat_reset_time(), '-infinity'),
         database_id = d.oid,
         written_by = pg_current_xact_id()::xid
    from pg_database d
   where d.datname = current_database()
     and (r.started_at, r.stats_reset, r.database_id, r.written_by)
         is distinct from (pg_postmaster_start_time(), coalesce(pg_stat_get_bgwriter_stat_reset_time(), '-infinity'),
                           d.oid, r.xmin)
$pglock$;

-- Lock IDs travel as a bigint and a kind: 0 one bigint, 1 a pair of integers packed into it, 2 and 3 the same in shared
-- mode. A null array of kinds means that all are 0.

create function "pglock".unlock(keys bigint[], kinds smallint[]) returns boolean[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
declare
  unlocked boolean[];
begin
  for i in 1 .. coalesce(cardinality(keys), 0) loop
    unlocked[i] := case coalesce(kinds[i], 0)
                     when 0 then pg_advisory_unlock(keys[i])
                     when 1 then pg_advisory_unlock((keys[i] >> 32)::int, (keys[i] << 32 >> 32)::int)
                     when 2 then pg_advisory_unlock_shared(keys[i])
                     else pg_advisory_unlock_shared((keys[i] >> 32)::int, (keys[i] << 32 >> 32)::int)
                   end;
  end loop;
  return unlocked;
end
$pglock$;

-- undo unlocks what a failed statement may have taken. Asking pg_locks first keeps "you don't own a lock" out of the log.
create function "pglock".undo(keys bigint[], kinds smallint[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
begin
  perform "pglock".unlock(array_agg(u.key), array_agg(u.kind))
     from unnest(keys, kinds) as u(key, kind)
    where exists (select from pg_locks l
                   where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted
                     and l.database = (select d.oid from pg_database d where d.datname = current_database())
                     and l.classid = ((u.key >> 32) & 4294967295)::oid
                     and l.objid = (u.key & 4294967295)::oid
                     and l.objsubid = case when coalesce(u.kind, 0) in (1, 3) then 2 else 1 end
                     and l.mode = case when coalesce(u.kind, 0) < 2 then 'ExclusiveLock' else 'ShareLock' end);
end
$pglock$;

-- take tries to take locks, in the order given. most is null, or the number of grants after which it stops; 0 means that it
-- stops at the first lock that somebody else has. What is not tried counts as not taken.
create function "pglock".take(keys bigint[], kinds smallint[], most integer) returns boolean[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
declare
  got boolean[] := array_fill(false, array[cardinality(keys)]);
  count integer := 0;
begin
  for i in 1 .. cardinality(keys) loop
    got[i] := case coalesce(kinds[i], 0)
                when 0 then pg_try_advisory_lock(keys[i])
                when 1 then pg_try_advisory_lock((keys[i] >> 32)::int, (keys[i] << 32 >> 32)::int)
                when 2 then pg_try_advisory_lock_shared(keys[i])
                else pg_try_advisory_lock_shared((keys[i] >> 32)::int, (keys[i] << 32 >> 32)::int)
              end;
    count := count + got[i]::int;
    exit when most = 0 and not got[i] or most > 0 and count = most;
  end loop;
  return got;
end
$pglock$;

-- token draws the token of a lock that was just taken. The base is read after the lock is held, in a statement and so a
-- snapshot of its own: a base raised in between by somebody who held this key before is seen. Every name in it is qualified,
-- so that it needs no search_path, which would cost a third of the call. Where none is wanted this backend is made ready to
-- draw the next one at once; that is one expression, since the first use of another would have to be planned.
create function "pglock".token(wanted boolean) returns bigint
language plpgsql volatile
as $pglock$
declare
  base bigint;
begin
  select r.base into strict base from "pglock".reign r;
  return base operator(pg_catalog.+) case when wanted then pg_catalog.nextval('"pglock".tokens')
                                          else pg_catalog.pg_sequence_last_value('"pglock".tokens') end;
end
$pglock$;

-- draw gives each lock that was taken its token, as token does: 0 where nothing was taken, -1 in shared mode.
create function "pglock".draw(got boolean[], kinds smallint[]) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
declare
  base bigint;
  tokens bigint[] := array_fill(0::bigint, array[cardinality(got)]);
begin
  if not true = any (got) then
    return tokens;
  end if;
  select r.base into strict base from "pglock".reign r;
  for i in 1 .. cardinality(got) loop
    if got[i] then
      tokens[i] := case when coalesce(kinds[i], 0) > 1 then -1 else base + nextval('"pglock".tokens') end;
    end if;
  end loop;
  return tokens;
end
$pglock$;

-- acquire tries to take locks on a connection that is not ours yet, and makes it ours if it takes one (or if adopt says
-- so): the session settings, the lease among them, are set in the same statement. Where nothing is taken nothing of the
-- connection is changed. pid is the backend that the client believes it talks to; null behind an allowed pooler, where
-- owner, a name that no other session has, takes its place. Nothing that fails after a lock was taken may leave it held: an
-- error would roll the settings back and keep the lock, a lock without a lease.
create function "pglock".acquire(
  pid bigint, owner text, settings text[], adopt boolean, verify boolean,
  keys bigint[], kinds smallint[], most integer,
  out outcome text, out detail text, out message text, out backend integer, out tokens bigint[], out functions oid[])
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
declare
  got boolean[];
  setting text;
  state text;
  ignored text; -- assigned to, since PERFORM takes an executor and an assignment does not
begin
  backend := pg_backend_pid();
  functions := array['"pglock".acquire_one(integer,bigint,integer,text,boolean)', '"pglock".take_one(integer,bigint,text)',
                     '"pglock".unlock_one(integer,bigint,boolean)', '"pglock".exchange(integer,bigint[],boolean,bigint[])',
                     '"pglock".wait(integer,text,integer,bigint,smallint)']::regprocedure[];
  if pid <> backend then
    outcome := 'pooler';
    return;
  end if;
  if owner is not null and (coalesce(current_setting('pglock.owner', true), '') <> ''
      or exists (select from pg_locks l where l.locktype = 'advisory' and l.pid = backend)) then
    outcome := 'pooler';
    return;
  end if;
  if pg_is_in_recovery() then
    outcome := 'recovery';
    return;
  end if;
  -- A lock that somebody has is refused before anything is done that costs more. What this takes ends with the transaction,
  -- whatever becomes of it; in pg_locks it would look like the lock that is to be verified.
  if not adopt and not verify and kinds is null and cardinality(keys) = 1 and not pg_try_advisory_xact_lock(keys[1]) then
    outcome := 'held';
    return;
  end if;
  perform from "pglock".reign r
    where r.started_at = pg_postmaster_start_time()
      and r.stats_reset = coalesce(pg_stat_get_bgwriter_stat_reset_time(), '-infinity')
      and r.written_by = r.xmin
      and r.database_id = (select d.oid from pg_database d where d.datname = current_database());
  if not found then
    outcome := 'reign';
    return;
  end if;
  begin
    if kinds is null and cardinality(keys) = 1 then
      got := array[pg_try_advisory_lock(keys[1])];
    else
      got := "pglock".take(keys, kinds, most);
    end if;
    if not adopt and not (true = any (got)) then
      outcome := 'held';
      return;
    end if;
    for i in 1 .. cardinality(settings) by 2 loop
      setting := settings[i];
      if strpos(setting, 'pglock.') = 1 or current_setting(setting, true) is not null then
        ignored := set_config(setting, settings[i + 1], false);
      elsif setting = 'idle_session_timeout' then
        raise exception using errcode = '42704', message = 'this server has no idle_session_timeout';
      end if;
    end loop;
    setting := null;
    -- A backend that listens and is not read from blocks in sending notifications, where no timer ends it.
    if exists (select from pg_listening_channels()) then
      execute 'unlisten *';
    end if;
    if verify then
      if exists (select from (select * from unnest(got, keys, kinds) as u(got, key, kind) where u.got limit 1) u
                  where not exists (
                    select from pg_locks l
                     where l.locktype = 'advisory' and l.pid = backend and l.granted
                       and l.classid = ((u.key >> 32) & 4294967295)::oid and l.objid = (u.key & 4294967295)::oid
                       and l.objsubid = case when coalesce(u.kind, 0) in (1, 3) then 2 else 1 end)) then
        raise exception using errcode = 'PLS01', message = 'pg_try_advisory_lock answered true and pg_locks shows no lock';
      end if;
      if exists (select from pg_sequence s where s.seqrelid = '"pglock".tokens'::regclass
                    and (s.seqcache <> 1 or s.seqcycle or s.seqincrement < 1)) then
        raise exception using errcode = 'PLS02',
          message = 'the sequence of fencing tokens must be CACHE 1, NO CYCLE and count upwards';
      end if;
    end if;
    if kinds is null and got = '{t}' then
      tokens := array["pglock".token(true)];
    else
      tokens := "pglock".draw(got, kinds);
    end if;
    outcome := 'ok';
  exception when query_canceled or others then
    get stacked diagnostics state = returned_sqlstate, message = message_text;
    perform "pglock".undo(keys, kinds);
    tokens := null;
    outcome := case when setting is null then 'error' else 'setting' end;
    detail := coalesce(setting, state);
  end;
end
$pglock$;

-- work is every later request on a session that is ours: unlock, then try, in one statement. With nothing to do it is the
-- heartbeat. held is null, or the least number of advisory locks that this backend must show.
create function "pglock".work(
  pid bigint, owner text, held integer, name text,
  clean boolean, unlock_keys bigint[], unlock_kinds smallint[], keys bigint[], kinds smallint[], most integer,
  out outcome text, out detail text, out message text, out unlocked boolean[], out tokens bigint[], out clock bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
declare
  ignored text;
begin
  if pid <> pg_backend_pid() or owner <> coalesce(current_setting('pglock.owner', true), '') then
    outcome := 'pooler';
    return;
  end if;
  if held > (select count(*) from pg_locks l where l.locktype = 'advisory' and l.granted and l.pid = pg_backend_pid()) then
    outcome := 'pooler';
    return;
  end if;
  if pg_is_in_recovery() then
    outcome := 'recovery';
    return;
  end if;
  outcome := 'ok';
  if unlock_keys is not null then
    unlocked := "pglock".unlock(unlock_keys, unlock_kinds);
  end if;
  if clean then
    ignored := pg_advisory_unlock_all();
  end if;
  if name is not null then
    ignored := set_config('application_name', name, false);
  end if;
  if keys is null then
    if unlock_keys is null then
      clock := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
    end if;
    return;
  end if;
  begin
    tokens := "pglock".draw("pglock".take(keys, kinds, most), kinds);
  exception when query_canceled or others then
    get stacked diagnostics detail = returned_sqlstate, message = message_text;
    perform "pglock".undo(keys, kinds);
    tokens := null;
    outcome := 'error';
  end;
end
$pglock$;

-- The functions below are called by messages that do nothing but call one function, which the server need not parse. They answer
-- with numbers: -1 on a backend that is not the client's, -2 on a standby. Every name in them is qualified, so that they need no
-- search_path, which would cost as much as the rest.

-- acquire_one is acquire for one lock, where that is known to work: a token, and the connection is ours, with a lease and the settings
-- that taking the lock needs; the others have to follow. 0 if somebody has the lock, and -3 if acquire has to be asked: nothing of
-- the connection is changed then. known says that acquire has found the reign current on this connection, for whose server and
-- database it stays so unless the row is written by somebody else than new_reign. A lease of null only asks whether the lock is free; one of 0 draws no token, and is
-- there to be rolled back. What fails may leave the
-- lock held, without a lease, and has to be followed by undo at once.
create function "pglock".acquire_one(pid integer, key bigint, lease integer, name text, known boolean) returns bigint
language plpgsql volatile
as $pglock$
declare
  base bigint;
  ignored pg_catalog.text;
begin
  if pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid() then
    return -1;
  end if;
  if pg_catalog.pg_is_in_recovery() then
    return -2;
  end if;
  if lease is null then
    return case when pg_catalog.pg_try_advisory_xact_lock(key) then -3 else 0 end;
  end if;
  if not pg_catalog.pg_try_advisory_lock(key) then
    return 0;
  end if;
  if known then
    select r.base into base from "pglock".reign r
     where r.started_at operator(pg_catalog.=) pg_catalog.pg_postmaster_start_time()
       and r.written_by operator(pg_catalog.=) r.xmin
       and pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.=) 'read committed'
       and pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.=) 'off'
       and (select pg_catalog.pg_listening_channels() limit 1) is null;
  else
    select r.base into base from "pglock".reign r
     where r.started_at operator(pg_catalog.=) pg_catalog.pg_postmaster_start_time()
       and r.stats_reset operator(pg_catalog.=) coalesce(pg_catalog.pg_stat_get_bgwriter_stat_reset_time(), '-infinity')
       and r.written_by operator(pg_catalog.=) r.xmin
       and r.database_id operator(pg_catalog.=)
           (select d.oid from pg_catalog.pg_database d where d.datname operator(pg_catalog.=) pg_catalog.current_database())
       and pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.=) 'read committed'
       and pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.=) 'off'
       and (select pg_catalog.pg_listening_channels() limit 1) is null;
  end if;
  if base is null then
    ignored := pg_catalog.pg_advisory_unlock(key);
    return -3;
  end if;
  ignored := pg_catalog.concat(pg_catalog.set_config('idle_session_timeout', lease::pg_catalog.text, false),
                               pg_catalog.set_config('synchronous_commit', 'off', false),
                               pg_catalog.set_config('application_name', name, false));
  return base operator(pg_catalog.+) case when lease operator(pg_catalog.>) 0 then pg_catalog.nextval('"pglock".tokens')
                                          else pg_catalog.pg_sequence_last_value('"pglock".tokens') end; -- as token does
end
$pglock$;

-- take_one tries for one lock: a token, or 0 if somebody has the lock. What fails after it was taken leaves it held, and has to be
-- followed by undo.
create function "pglock".take_one(pid integer, key bigint, name text) returns bigint
language plpgsql volatile
as $pglock$
begin
  if pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid() then
    return -1;
  end if;
  if pg_catalog.pg_is_in_recovery() then
    return -2;
  end if;
  if name is not null then
    name := pg_catalog.set_config('application_name', name, false);
  end if;
  if pg_catalog.pg_try_advisory_lock(key) then
    return "pglock".token(true);
  end if;
  return 0;
end
$pglock$;

-- unlock_one unlocks one lock, and with clean whatever else is held: 1, or 0 if the lock was not held. With a key of null it only
-- makes this backend ready to unlock the next one at once.
create function "pglock".unlock_one(pid integer, key bigint, clean boolean) returns bigint
language plpgsql volatile
as $pglock$
declare
  ignored pg_catalog.text;
begin
  if pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid() then
    return -1;
  end if;
  if pg_catalog.pg_is_in_recovery() then
    return -2;
  end if;
  if not pg_catalog.pg_advisory_unlock(key) then
    return 0;
  end if;
  if clean then
    ignored := pg_catalog.pg_advisory_unlock_all();
  end if;
  return 1;
end
$pglock$;

-- exchange unlocks some locks and tries for others. It answers with the base, which is to be added to each number of the sequence
-- that follows; 1 or 0 for each unlock; and such a number, or 0, for each try. A base of -3 means that the tries have failed and
-- that nothing of them is held. The base is read after the locks were taken, as in token.
create function "pglock".exchange(pid integer, unlock_keys bigint[], clean boolean, keys bigint[]) returns bigint[]
language plpgsql volatile
as $pglock$
declare
  answer bigint[] := pg_catalog.array_prepend(0::bigint, pg_catalog.array_cat(unlock_keys, keys));
  at integer := 1;
  base bigint;
  ignored pg_catalog.text;
begin
  if pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid() then
    return '{-1}';
  end if;
  if pg_catalog.pg_is_in_recovery() then
    return '{-2}';
  end if;
  for i in 1 .. coalesce(pg_catalog.cardinality(unlock_keys), 0) loop
    at := at operator(pg_catalog.+) 1;
    answer[at] := case when pg_catalog.pg_advisory_unlock(unlock_keys[i]) then 1 else 0 end;
  end loop;
  if clean then
    ignored := pg_catalog.pg_advisory_unlock_all();
  end if;
  if keys is null then
    return answer;
  end if;
  begin
    for i in 1 .. pg_catalog.cardinality(keys) loop
      at := at operator(pg_catalog.+) 1;
      answer[at] := case when pg_catalog.pg_try_advisory_lock(keys[i]) then pg_catalog.nextval('"pglock".tokens') else 0 end;
    end loop;
    select r.base into strict base from "pglock".reign r;
    answer[1] := base;
  exception when query_canceled or others then
    perform "pglock".undo(keys, null);
    answer[1] := -3;
  end;
  return answer;
end
$pglock$;

-- wait is one slice of waiting, on a session that is ours and holds nothing. It answers with the token, which in shared mode says
-- nothing, or 0 when the slice is over. A lock that may be counted twice is told by 9 less than the negative of its token:
-- lock_timeout may fire although the lock was granted in that instant, and asking once more keeps such a grant. An error ends the
-- session. What follows on the grant is gone through once before, without drawing a token, so that nothing is planned, opened or
-- read in between; what fails then is for whoever has the lock.
create function "pglock".wait(pid integer, owner text, ms integer, key bigint, kind smallint) returns bigint
language plpgsql volatile
as $pglock$
declare
  token bigint;
  raced boolean := false;
  ignored pg_catalog.text;
begin
  if pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid()
      or owner operator(pg_catalog.<>) coalesce(pg_catalog.current_setting('pglock.owner', true), '') then
    return -1;
  end if;
  if pg_catalog.pg_is_in_recovery() then
    return -2;
  end if;
  for pass in 0 .. 1 loop
    begin
      if pass operator(pg_catalog.=) 1 then
        ignored := pg_catalog.set_config('lock_timeout', ms::pg_catalog.text, true);
        if kind operator(pg_catalog.=) 0 then
          ignored := pg_catalog.pg_advisory_lock(key);
        elsif kind operator(pg_catalog.=) 1 then
          ignored := pg_catalog.pg_advisory_lock((key operator(pg_catalog.>>) 32)::integer,
                                                 (key operator(pg_catalog.<<) 32 operator(pg_catalog.>>) 32)::integer);
        elsif kind operator(pg_catalog.=) 2 then
          ignored := pg_catalog.pg_advisory_lock_shared(key);
        else
          ignored := pg_catalog.pg_advisory_lock_shared((key operator(pg_catalog.>>) 32)::integer,
                                                        (key operator(pg_catalog.<<) 32 operator(pg_catalog.>>) 32)::integer);
        end if;
      end if;
    exception when lock_not_available then
      if not ("pglock".take(array[key], array[kind], null))[1] then
        return 0;
      end if;
      raced := true;
    end;
    begin
      token := "pglock".token(pass operator(pg_catalog.=) 1 and kind operator(pg_catalog.<) 2);
    exception when others then
      if pass operator(pg_catalog.=) 1 then
        raise;
      end if;
    end;
    token := case when kind operator(pg_catalog.>) 1 then 1 else token end;
  end loop;
  if raced then
    return -9 operator(pg_catalog.-) token;
  end if;
  return token;
end
$pglock$;

-- warm_up has this backend read and compile what a lock and a first fenced write need, for no lock at all. Its caller rolls it
-- back; no token is drawn. It answers with the functions, if the reign is current. The settings are made outside the block that
-- catches: a savepoint that is rolled back takes the value of transaction_timeout with it and leaves its timer running.
create function "pglock".warm_up(pid bigint, settings text[]) returns oid[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
declare
  outcome text;
  functions oid[];
begin
  select a.outcome, a.functions into outcome, functions
    from "pglock".acquire(pid, null, settings, true, false, '{}', null, null) a;
  begin
    perform "pglock".fence(null, null);
  exception when others then
    null; -- the fence refuses that, or is not there; what is wrong elsewhere the next try finds out
  end;
  return case when outcome = 'ok' then functions end;
end
$pglock$;

-- lock_tx waits for a lock that ends with the caller's transaction, for at most ms milliseconds (0: without end). It reports
-- false when they are over. The block is a savepoint, so that the transaction goes on either way, and lock_timeout is left
-- as it was.
create function "pglock".lock_tx(key bigint, kind smallint, ms integer) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $pglock$
declare
  before text := current_setting('lock_timeout');
begin
  perform set_config('lock_timeout', ms::text, true);
  case kind
    when 0 then perform pg_advisory_xact_lock(key);
    else perform pg_advisory_xact_lock((key >> 32)::int, (key << 32 >> 32)::int);
  end case;
  perform set_config('lock_timeout', before, true);
  return true;
exception when lock_not_available then
  return case kind
    when 0 then pg_try_advisory_xact_lock(key)
    else pg_try_advisory_xact_lock((key >> 32)::int, (key << 32 >> 32)::int)
  end;
end
$pglock$;

-- key is the hash of internal/keyhash. Changing it in a rolling deploy would let two holders in.
create function "pglock".key(namespace text, name text) returns bigint
language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp
as $pglock$
  select ('x' || encode(substr(sha256('pglock/v1'::bytea
                                      || int8send(octet_length(convert_to(namespace, 'UTF8')))
                                      || convert_to(namespace, 'UTF8')
                                      || convert_to(name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
$pglock$;
