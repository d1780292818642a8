import { describe, expect, test } from 'bun:test'
import { type Change, createCommits } from '../../db/postgres/commits'
import {
  DatabaseGoneError,
  LaneLostError,
  PostgresError,
  RefusedError,
} from '../../db/postgres/errors'
import { installFunctions, searchFunctions } from '../../db/postgres/functions'
import { type Lines, openLines } from '../../db/postgres/line-pool'
import type { Json } from '../../db/postgres/rows'
import { freshDatabase, hasPostgres, startCluster } from '../harness/postgres'
import { until } from '../harness/settlement'

const relayer = `0x${'1'.repeat(40)}`
const monotonic = () => performance.now()

/** A function that a test may call: it adds a row, and does what its input says. */
const put = `CREATE FUNCTION put(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO marks (n) VALUES ((input->>'n')::int);
  IF input ? 'refuse' THEN
    PERFORM refuse(input->>'refuse', input->>'about');
  END IF;
  PERFORM fence(input->'fence');
  PERFORM pg_sleep(coalesce((input->>'sleep')::float, 0));
  RETURN jsonb_build_object('value', input->'n', 'payments', jsonb_build_array('pay_' || (input->>'n')));
END $$`

type Options = {
  answerMs?: number
  /** What stands between the commits and their connections. */
  between?: (lines: Lines) => Lines
}

async function open({ between = (lines) => lines, ...options }: Options = {}) {
  const url = await freshDatabase()
  const servers = [{ connectionString: url }]
  const name = 'test'
  const admin = await openLines({ servers, name, session: () => [searchFunctions()], monotonic })
  const sql = <Row>(text: string, values?: readonly unknown[]) =>
    admin.run('read', (query) => query<Row>(text, values))
  await sql('CREATE TABLE marks (n int PRIMARY KEY)')
  await admin.run('commit', installFunctions)
  await sql(put)
  const lines = await openLines({
    servers,
    name,
    session: () => [searchFunctions(), "SET application_name = 'commits'"],
    monotonic,
    ...options,
  })
  const stop = new AbortController()
  const changed: string[] = []
  const commits = createCommits({
    lines: between(lines),
    gateway: crypto.randomUUID(),
    messages: { takes: () => false, write: async () => undefined, notify: () => undefined },
    changed: ({ payments }) => void changed.push(...payments),
    signal: stop.signal,
    monotonic,
  })
  return {
    ...{ admin, lines, commits, changed, sql },
    marks: async () =>
      (await sql<{ n: number }>('SELECT n FROM marks ORDER BY n')).map(({ n }) => n),
    /** Ends the connections that run commits. */
    kill: () =>
      sql(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE application_name = 'commits' AND query LIKE '%commit_changes%'
           AND datname = current_database()`,
      ),
    async [Symbol.asyncDispose]() {
      stop.abort()
      lines.close()
      admin.close()
    },
  }
}

const change = (n: number, more: Readonly<Record<string, Json>> = {}): Change<Json> => ({
  call: 'put',
  input: { n, ...more },
  key: `mark:${n}`,
  read: (value) => value,
})
/** Sends one change as a commit of this id. */
async function send(
  { lines }: { lines: Lines },
  id: string,
  input: Readonly<Record<string, Json>>,
  isRepeat = false,
) {
  const text = 'SELECT commit_changes($1::uuid, $1::uuid, $2::jsonb, NULL, $3) AS answer'
  const values = [id, JSON.stringify([{ call: 'put', input }]), isRepeat]
  const [row] = await lines.run('commit', (query) => query<{ answer: Json }>(text, values))
  return row?.answer
}
const failureOf = (work: Promise<unknown>) =>
  work.then(
    () => undefined,
    (error: unknown) => error,
  )

describe.skipIf(!hasPostgres)('commits to PostgreSQL', () => {
  test('a change that finds every line busy is sent when one is idle', async () => {
    await using own = await open()
    const { lines, commits } = own
    const used = lines.run('soon', (query) => query('SELECT pg_sleep(0.2)'))
    const added = commits.addSoon(change(1))
    await used
    expect(await added).toBe(1)
  })

  test('a connection keeps no answers of statements that have ended', async () => {
    await using own = await open()
    const kept: WeakRef<readonly unknown[]>[] = []
    for (let n = 0; n < 200; n++) kept.push(new WeakRef(await own.sql('SELECT 1 AS one')))
    await own.sql('SELECT 2 AS two')
    Bun.gc(true)
    // The garbage collector also scans the stack, which may still refer to some of the last ones.
    expect(kept.filter((each) => each.deref() !== undefined).length).toBeLessThan(100)
  })

  test('changes that come together share a commit, and each gets its own result', async () => {
    await using own = await open()
    const results = await Promise.all(
      Array.from({ length: 50 }, (_, n) => own.commits.add(change(n))),
    )
    expect(results).toEqual(Array.from({ length: 50 }, (_, n) => n))
    expect(own.commits.commits()).toBeLessThan(10)
    expect(own.changed.toSorted()).toEqual(results.map((n) => `pay_${n}`).toSorted())
  })

  test('the only change is sent at once, and those that come beside it share a commit', async () => {
    await using own = await open()
    const first = own.commits.add(change(1))
    await Promise.resolve()
    expect(own.commits.commits()).toBe(1)
    const others = [own.commits.add(change(2)), own.commits.add(change(3))]
    await Promise.resolve()
    expect(own.commits.commits()).toBe(1)
    expect(await Promise.all([first, ...others])).toEqual([1, 2, 3])
    expect(own.commits.commits()).toBe(2)
  })

  test('error: a change that is refused is rolled back alone, with its reason', async () => {
    await using own = await open()
    const [first, refused, again, last] = await Promise.all([
      own.commits.add(change(1)),
      failureOf(own.commits.add(change(2, { refuse: 'order-quota', about: 'pay_2' }))),
      failureOf(own.commits.add(change(1))),
      own.commits.add(change(3)),
    ])
    expect([first, last]).toEqual([1, 3])
    expect(refused).toBeInstanceOf(RefusedError)
    expect(refused).toMatchObject({ reason: 'order-quota', detail: 'pay_2' })
    expect(again).toBeInstanceOf(PostgresError)
    expect(again).toMatchObject({ code: '23505', constraint: 'marks_pkey' })
    expect(await own.marks()).toEqual([1, 3])
  })

  test('error: a text that the database cannot store fails its own change only', async () => {
    await using own = await open()
    const [first, failed, last] = await Promise.all([
      own.commits.add(change(1)),
      failureOf(own.commits.add(change(2, { about: 'a\u0000b' }))),
      own.commits.add(change(3)),
    ])
    expect([first, last]).toEqual([1, 3])
    expect(failed).toMatchObject({ code: '22P05' })
    expect(await own.marks()).toEqual([1, 3])
  })

  test('error: a write for a lane that another gateway has is refused as a lost lane', async () => {
    await using own = await open()
    const holder = crypto.randomUUID()
    const fence = { network: 'eip155:1', relayer, nonce: 7, holder, epoch: 3 }
    expect(await failureOf(own.commits.add(change(1, { fence })))).toBeInstanceOf(LaneLostError)
    await own.sql(
      `INSERT INTO gateways (id, host, version, config_hash, fingerprints, seen_at)
       VALUES ($1, 'h', 'v', 'c', '{}', clock_timestamp())`,
      [holder],
    )
    await own.sql(
      `INSERT INTO lanes (network, relayer, holder, epoch, next_nonce) VALUES ('eip155:1', '${relayer}', $1, 3, 5)`,
      [holder],
    )
    expect(await own.commits.add(change(1, { fence }))).toBe(1)
    expect(await own.sql<Json>('SELECT epoch, next_nonce FROM lanes')).toEqual([
      { epoch: 3, next_nonce: 8 },
    ])
    const old = { ...fence, epoch: 2 }
    expect(await failureOf(own.commits.add(change(2, { fence: old })))).toBeInstanceOf(
      LaneLostError,
    )
    expect(await own.marks()).toEqual([1])
  })

  test('each change has its effect once, although connections end during commits', async () => {
    await using own = await open()
    const results: Json[] = []
    for (let round = 0; round < 12; round++) {
      const work = Array.from({ length: 20 }, (_, i) =>
        own.commits.add(change(round * 20 + i, { sleep: 0.001 })),
      )
      await own.kill()
      results.push(...(await Promise.all(work)))
    }
    expect(results).toEqual(Array.from({ length: 240 }, (_, n) => n))
    expect(await own.marks()).toEqual(results as number[])
  })

  test('a commit that is sent again writes a row, so it waits for a synchronous standby', async () => {
    await using own = await open()
    const id = crypto.randomUUID()
    const changes = JSON.stringify([{ call: 'put', input: { n: 1 } }])
    const commit = async () => {
      const text = 'SELECT commit_changes($1::uuid, $1::uuid, $2::jsonb) AS answer'
      const [row] = await own.sql<{ answer: Json }>(text, [id, changes])
      const [written] = await own.sql<{ by: string }>('SELECT xmin::text AS by FROM commits')
      return { answer: row?.answer, by: written?.by }
    }
    const first = await commit()
    const second = await commit()
    expect(second.answer).toEqual(first.answer)
    expect(second.by).not.toBe(first.by)
    expect(await own.marks()).toEqual([1])
  })

  test('a commit whose answer was lost is not made twice, nor refused when the server is away next', async () => {
    let sent = 0
    await using own = await open({
      between: (lines) => ({
        ...lines,
        async run(kind, work) {
          sent++
          if (sent === 2) throw new DatabaseGoneError('away', { mayHaveRun: false })
          const answer = await lines.run(kind, work)
          if (sent === 1) throw new DatabaseGoneError('lost', { mayHaveRun: true })
          return answer
        },
      }),
    })
    expect(await own.commits.add(change(1))).toBe(1)
    expect([sent, await own.marks()]).toEqual([3, [1]])
  })

  test('a commit that is sent again while the first one runs waits for it, and answers the same', async () => {
    await using own = await open()
    const id = crypto.randomUUID()
    const first = send(own, id, { n: 1, sleep: 0.3 })
    await until(async () => {
      const waits = `SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'
        AND datname = current_database()`
      return (await own.sql(waits)).length > 0
    })
    const second = await send(own, id, { n: 1, sleep: 0.3 }, true)
    expect(second).toEqual(await first)
    expect(await own.marks()).toEqual([1])
  })

  test('error: a commit that arrives after its own repeat has no effect', async () => {
    await using own = await open()
    const id = crypto.randomUUID()
    await send(own, id, { n: 1 }, true)
    // Nothing else refuses it.
    const late = await failureOf(send(own, id, { n: 2 }))
    expect(late).toMatchObject({ code: '23505', constraint: 'commits_pkey' })
    expect(await own.marks()).toEqual([1])
  })

  test('error: without an answer in time the connection is given up, and the change is still made once', async () => {
    await using own = await open({ answerMs: 400 })
    expect(await own.commits.add(change(1, { sleep: 0.6 }))).toBe(1)
    expect(await own.marks()).toEqual([1])
  })

  test('two commits that lock the same rows in other orders both succeed', async () => {
    await using own = await open()
    await own.sql('CREATE TABLE sums (id int PRIMARY KEY, n int NOT NULL)')
    await own.sql('INSERT INTO sums VALUES (1, 0), (2, 0)')
    await own.sql(`CREATE FUNCTION both_sums(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
      BEGIN
        UPDATE sums SET n = n + 1 WHERE id = (input->>'first')::int;
        PERFORM pg_sleep(0.02);
        UPDATE sums SET n = n + 1 WHERE id = 3 - (input->>'first')::int;
        RETURN '{"value": true}';
      END $$`)
    const both = (first: number) =>
      own.commits.add({ call: 'both_sums', input: { first }, key: '', read: (value) => value })
    const first = both(1)
    // The second line is free: the two commits run at once.
    await Bun.sleep(0)
    expect(await Promise.all([first, both(2)])).toEqual([true, true])
    expect(await own.sql<Json>('SELECT n FROM sums ORDER BY id')).toEqual([{ n: 2 }, { n: 2 }])
  })

  test('error: without a server changes are refused as a fault, and made after its return', async () => {
    const cluster = await startCluster()
    const lines = await openLines({
      servers: [{ connectionString: cluster.url() }],
      name: 'test',
      session: () => [],
      monotonic,
    })
    const stop = new AbortController()
    await cluster.crash()
    await until(() => lines.storage.fault() === 'DATABASE_GONE')
    expect(await failureOf(lines.run('commit', (query) => query('SELECT 1')))).toMatchObject({
      code: 'DATABASE_GONE',
      mayHaveRun: false,
    })
    const writable = lines.storage.writable(stop.signal)
    await cluster.start()
    await writable
    expect(lines.storage.fault()).toBeUndefined()
    expect(lines.storage.counts()).toEqual(new Map([['DATABASE_GONE', 1]]))
    expect(await lines.run('commit', (query) => query<Json>('SELECT 1 AS one'))).toEqual([
      { one: 1 },
    ])
    lines.close()
    await cluster.stop()
  })
})
