-- The tables of the job runner. Applied under a lock, any number of times.
create schema if not exists jobrunner;

-- One row a job. The total is written as a number that was read when the run began, plus what the run brought: a second run
-- of a tick, or a write by a holder whose time is over, makes it wrong.
create table if not exists jobrunner.jobs (
  name  text primary key,
  since timestamptz not null default clock_timestamp(), -- ticks after this are owed
  runs  bigint not null default 0,
  total bigint not null default 0
);

-- One row a tick that was run.
create table if not exists jobrunner.job_runs (
  job          text not null references jobrunner.jobs,
  scheduled_at timestamptz not null,
  replica      text not null,
  token        bigint not null,
  amount       bigint not null,
  started_at   timestamptz not null,
  finished_at  timestamptz not null,
  constraint job_runs_once primary key (job, scheduled_at)
);

-- One row a start, also of runs that came to nothing. A holder writes it before it works, and thereby claims the job: from
-- then on the fence refuses whoever held it before.
create table if not exists jobrunner.attempts (
  job          text not null references jobrunner.jobs,
  token        bigint not null,
  scheduled_at timestamptz not null,
  replica      text not null,
  started_at   timestamptz not null,
  primary key (job, token, scheduled_at)
);

-- One row a write that the fence refused, noted by the one that was refused.
create table if not exists jobrunner.rejections (
  job          text not null references jobrunner.jobs,
  scheduled_at timestamptz not null,
  replica      text not null,
  token        bigint not null,
  highest      bigint not null,
  rejected_at  timestamptz not null default clock_timestamp()
);

-- One row a holder that the demo killed, cut off or froze, written just before.
create table if not exists jobrunner.faults (
  job       text not null references jobrunner.jobs,
  token     bigint not null,
  kind      text not null,
  replica   text not null,
  bound     interval not null, -- within which another must have taken over
  at        timestamptz not null default clock_timestamp()
);
