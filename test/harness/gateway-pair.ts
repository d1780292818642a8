import type { Ledger } from '../../db/Ledger'
import { type Gateways, joinGateways, type Times } from '../../db/postgres/gateways'
import { createLedger } from '../../db/postgres/ledger'
import { type Lines, openLines, sessionOf } from '../../db/postgres/line-pool'

/** A tenth of the usual times. */
const times: Times = { beatMs: 200, deadMs: 1_500, steadyMs: 1_000, gapMs: 800, freshMs: 1_200 }

export type TestGateway = {
  id: string
  ledger: Ledger
  gateways: Gateways
  /** Why the others took it for dead. */
  fenced: string[]
  reaped: string[]
  wentBack: unknown[]
  faults: unknown[]
  sql<Row>(text: string, values?: readonly unknown[]): Promise<readonly Row[]>
  /** Ends its connections without a word, as a dead machine does. */
  die(): Promise<void>
  /** Leaves as a stop does. */
  leave(): Promise<void>
}

/** A gateway over a database, as `openPostgres` composes it, by a clock of the test. */
export async function startGateway(
  url: string,
  options: {
    now: () => number
    times?: Partial<Times>
    /** Longest time of a statement, ms. */
    answerMs?: number
    lines?: (lines: Lines) => Lines
    configHash?: () => string
    /** The clock of its machine; by default that of the database. */
    clock?: () => number
  },
): Promise<TestGateway> {
  const monotonic = () => performance.now()
  const id = crypto.randomUUID()
  let notify: (payload: string) => void = () => undefined
  const opening = await openLines({
    servers: [{ connectionString: url }],
    name: 'test',
    session: (kind) => sessionOf(kind, options.answerMs),
    ...(options.answerMs !== undefined && { answerMs: options.answerMs }),
    monotonic,
    onNotification: (payload) => notify(payload),
  })
  const lines = options.lines?.(opening) ?? opening
  const fenced: string[] = []
  const reaped: string[] = []
  const wentBack: unknown[] = []
  const faults: unknown[] = []
  const gateways = await joinGateways({
    lines,
    gateway: {
      ...{ id, host: 'test', version: '1.2.3', fingerprints: {} },
      configHash: options.configHash ?? (() => ''),
    },
    now: options.clock ?? Date.now,
    monotonic,
    on: {
      fenced: (reason) => void fenced.push(reason),
      reaped: (each) => void reaped.push(each),
      wentBack: (lane) => void wentBack.push(lane),
      fault: (error) => void faults.push(error),
    },
    times: { ...times, ...options.times },
  })
  const opened = await createLedger({ lines, gateways, now: options.now, monotonic })
  notify = opened.notify
  let isOver = false
  return {
    ...{ id, ledger: opened.ledger, gateways, fenced, reaped, wentBack, faults },
    sql: (text, values) => lines.run('read', (query) => query(text, values)),
    async die() {
      if (isOver) return
      isOver = true
      lines.close()
      // What is under way fails: it has no connection.
      await Promise.allSettled([gateways.close(), opened.close()])
    },
    async leave() {
      if (isOver) return
      isOver = true
      await opened.close()
      await gateways.close()
      lines.close()
    },
  }
}
