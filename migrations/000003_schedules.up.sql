-- Who leads, and which ticks have run.
insert into "pglock".migrations (version) values (3);

-- leaders has a row for each election that was ever won, named by its lock ID. Whether the leader it names still leads is seen from the lock.
create table "pglock".leaders (
  election text primary key,
  token    bigint not null,
  name     text not null,
  host     text not null,
  pid      integer not null,
  since    timestamptz not null
);

create table "pglock".ticks (
  namespace text not null,
  job       text not null,
  slot      timestamptz not null,
  done_at   timestamptz not null default pg_catalog.clock_timestamp(),
  primary key (namespace, job, slot)
);
create index ticks_done_at on "pglock".ticks (done_at);
