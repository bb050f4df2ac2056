package main

// A mutant is a way to break pglock, and the test that must see it.
type mutant struct {
	name  string
	edits []edit
	pkg   string
	test  string
}

// An edit replaces a text that stands in a file once.
type edit struct {
	file, old, now string
}

// The packages whose tests catch mutants.
const (
	promises = "."
	library  = "./pglock"
	checks   = "./internal/mutants"
	hash     = "./internal/keyhash"
)

const (
	locksSQL = "migrations/000001_pglock.up.sql"
	fenceSQL = "migrations/000002_fence.up.sql"
)

// mutants are all of them: trust and lease first, then the server's side of a
// lock, the manager, tokens, and the fence.
func mutants() []mutant {
	return append(append(ofTrust(), ofSessions()...), ofTokens()...)
}

func ofTrust() []mutant {
	return []mutant{
		{"no-trust-deadline", []edit{{
			"pglock/loss.go",
			"return time.Duration(s.trust.Load())",
			"return time.Duration(s.trust.Load()) + time.Hour",
		}}, checks, "TestP3_TrustCountsFromTheSend"},
		{"trust-from-receipt", []edit{{
			"pglock/loss.go",
			"s.trust.Store(int64(sent + ",
			"s.trust.Store(int64(s.m.now() + ",
		}}, checks, "TestP3_TrustCountsFromTheSend"},
		{"no-lease", []edit{{
			"pglock/sql.go",
			"\t\t{\"idle_session_timeout\", ms},\n",
			"",
		}}, checks, "TestP4_NoMomentWithoutATimer"},
		{"no-lease-on-the-short-way", []edit{{
			locksSQL,
			"pg_catalog.set_config('idle_session_timeout', lease::pg_catalog.text, false)",
			"''",
		}}, promises, "TestP4_HolderCutOffRightAfterTheGrantBlocksForALeaseAtMost"},
		{"no-heartbeat", []edit{{
			"pglock/session.go",
			"wait := s.sent + m.config.HeartbeatInterval;",
			"wait := s.sent + 2*m.config.Lease;",
		}}, checks, "TestP12_HeartbeatsKeepALock"},
		{"extended-protocol", []edit{
			{
				"pglock/wire.go",
				"\tc.front.Send(r.message())\n",
				`	if strings.Contains(r.sql, ".work(") {
		c.front.SendParse(&pgproto3.Parse{Query: r.sql})
		c.front.SendBind(&pgproto3.Bind{})
		c.front.SendDescribe(&pgproto3.Describe{ObjectType: 'P'})
		c.front.SendExecute(&pgproto3.Execute{})
		c.front.SendSync(&pgproto3.Sync{})
	} else {
		c.front.Send(r.message())
	}
`,
			},
			{"pglock/wire.go", "\t\"net\"\n", "\t\"net\"\n\t\"strings\"\n"},
		}, checks, "TestP4_NoMomentWithoutATimer"},
		{"loss-forgotten", []edit{{
			"pglock/loss.go",
			"return !l.lose(err) })",
			"return l.Err() == nil })",
		}}, checks, "TestP5_HolderWhoseSessionIsEndedIsTold"},
	}
}

func ofSessions() []mutant {
	return []mutant{
		{"pid-not-checked", []edit{{
			locksSQL,
			"  if pid <> backend then\n",
			"  if false then\n",
		}}, checks, "TestP10_PoolersAreRefused"},
		{"release-without-checking", []edit{{
			"pglock/exchange.go",
			"if !reply.unlockedAt(i) {",
			"if false && !reply.unlockedAt(i) {",
		}}, checks, "TestP5_ReleaseOfALockThatIsGoneSaysLost"},
		{"raced-grant-dropped", []edit{{
			locksSQL,
			"    if not (\"pglock\".take(array[key], array[kind], null))[1] then\n",
			"    if true then\n",
		}}, checks, "TestP8_GrantThatRacedItsSliceIsNotLeftBehind"},
		{"parked-session-not-cleaned", []edit{
			{locksSQL, "  if clean then\n    ignored := pg_advisory_unlock_all();\n  end if;\n", ""},
			{locksSQL, "  if clean then\n    ignored := pg_catalog.pg_advisory_unlock_all();\n  end if;\n  return 1;\n", "  return 1;\n"},
			{locksSQL, "  if clean then\n    ignored := pg_catalog.pg_advisory_unlock_all();\n  end if;\n  if keys is null then\n", "  if keys is null then\n"},
		}, checks, "TestP8_ReleaseOfAGrantThatRacedItsSliceFreesTheLock"},
		{"failed-try-not-undone", []edit{{
			"pglock/exchange.go",
			"s.m.sql.undo(s.text[:0], &s.work.take)",
			"append(s.text[:0], \"SELECT pg_backend_pid()\"...)",
		}}, library, "TestAFailedTryOnAParkedSessionLeavesNothingHeld"},
		{"grant-that-nobody-wants-kept", []edit{{
			"pglock/queue.go",
			"\t\tm.startRelease(lock)\n\t\treturn\n",
			"\t\treturn\n",
		}}, checks, "TestP8_GrantThatRacedItsSliceIsNotLeftBehind"},
		{"dead-waiter-keeps-its-place", []edit{{
			"pglock/loss.go",
			"\tif waited != nil {\n\t\twaited.front, waited.session = frontNone, nil\n\t\tm.dispatch(waited)\n\t}\n",
			"\t_ = waited\n",
		}}, checks, "TestP5_WaiterWhoseSessionIsEndedGoesOn"},
		{"contended-try-keeps-the-connection", []edit{{
			"pglock/open.go",
			"\tif s.lastTries() {\n\t\tc.giveBack()\n",
			"\tif s.lastTries() {\n\t\tc.discard()\n",
		}}, promises, "TestP8_ContendedTryOpensNothingAndBurnsNoToken"},
	}
}

// slowFence is where the fence leaves its short way.
const slowFence = "    exit when pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.<>) 'read committed'\n" +
	"           or pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.<>) 'off';\n"

func ofTokens() []mutant {
	return []mutant{
		{"plain-sequence", []edit{{
			locksSQL,
			"return base operator(pg_catalog.+) case when wanted then pg_catalog.nextval('\"pglock\".tokens')",
			"return case when wanted then pg_catalog.nextval('\"pglock\".tokens')",
		}, {
			locksSQL,
			"return base operator(pg_catalog.+) case when lease",
			"return case when lease",
		}}, promises, "TestP6_FailoverWithTheOldPrimaryGone"},
		{"life-without-crash-mark", []edit{
			{locksSQL, "      and r.stats_reset = coalesce(pg_stat_get_bgwriter_stat_reset_time(), '-infinity')\n", ""},
			{locksSQL, "       and r.stats_reset operator(pg_catalog.=) coalesce(pg_catalog.pg_stat_get_bgwriter_stat_reset_time(), '-infinity')\n", ""},
		}, promises, "TestP6_TokensIncreaseOver20Crashes"},
		{"restored-reign-taken-for-ours", []edit{
			{locksSQL, "      and r.written_by = r.xmin\n", ""},
			{locksSQL, "start_time()\n       and r.written_by operator(pg_catalog.=) r.xmin\n", "start_time()\n"},
			{locksSQL, "'-infinity')\n       and r.written_by operator(pg_catalog.=) r.xmin\n", "'-infinity')\n"},
		}, library, "TestTokensRiseOverARestoreOfTheDataAlone"},
		{"reign-waits-for-standby", []edit{{
			"pglock/sql.go",
			"SET LOCAL synchronous_commit TO local;",
			"",
		}}, promises, "TestP6_FailoverOfASynchronousStandbyHoldsUpNoLock"},
		{"draw-waits-for-standby", []edit{{
			"pglock/sql.go",
			"{\"synchronous_commit\", \"off\"}",
			"{\"synchronous_commit\", \"on\"}",
		}}, promises, "TestP6_FailoverOfASynchronousStandbyHoldsUpNoLock"},
		{"sequence-with-a-cache", []edit{{
			locksSQL,
			"minvalue 1 cache 1 no cycle",
			"minvalue 1 cache 20 no cycle",
		}}, promises, "TestP6_TokensIncreaseOver1000Grants"},
		{"hash-changed", []edit{{
			"internal/keyhash/keyhash.go",
			"\"pglock/v1\"",
			"\"pglock/v2\"",
		}}, hash, "TestSumIsFrozen"},
		{"fence-without-lock", []edit{{
			fenceSQL,
			"pg_catalog.pg_advisory_xact_lock_shared(1885826155, pg_catalog.hashtext(fence.resource collate pg_catalog.\"C\"))",
			"null",
		}}, checks, "TestP7_RaiseWaitsForAnOpenFencedTransaction"},
		{"fence-without-second-look", []edit{{
			fenceSQL,
			slowFence,
			"    return;\n",
		}}, promises, "TestP7_ClaimIsNotHeldUpByAStreamOfWrites"},
		{"fence-by-an-old-snapshot", []edit{{
			fenceSQL,
			slowFence,
			"",
		}}, promises, "TestP7_ClaimIsNotHeldUpByAStreamOfWrites"},
		{"fence-without-comparison", []edit{{
			fenceSQL,
			"  if highest is distinct from fence_raise.token then\n",
			"  if highest is null then\n",
		}}, promises, "TestP7_SlowHolder"},
	}
}
