import { Database } from 'bun:sqlite'
import { chmodSync, closeSync, mkdirSync, openSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import type { Address, Hex } from 'viem'
import { codeOf } from '../../config/env'
import * as Amount from '../../protocol/Amount'
import * as Crypto from '../../protocol/Crypto'
import { dayOf } from '../../protocol/Time'
import { CommandError } from '../Command'

/**
 * The signed payments of a wallet, in a SQLite file that several processes may share. A payment is
 * written before it leaves the process, and counts from then on.
 */

/** `open`: signed, with an unknown end. `redeemable`: paid, with a token. `over`: given up. */
type State = 'open' | 'redeemable' | 'delivered' | 'over'

/** A signed payment. */
export type Payment = {
  id: string
  /** Identifies the call that it pays for: gateway, payer, tool and arguments. */
  call: string
  tool: string
  /** JSON. */
  args: string
  network: string
  asset: Address
  method: 'eip3009' | 'permit2'
  /** `channel`: a deposit into one, which is its `call`, or a call that is paid from one. */
  scheme: 'exact' | 'upto' | 'channel'
  payer: Address
  payee: Address
  nonce: Hex
  /** Millionths of a dollar that were signed; with `upto`, the ceiling; 0 from a channel. */
  signedMicros: bigint
  /** The amount as text, e.g. `0.005000 USDC`. */
  amount: string
  /** Unix seconds after which it cannot be settled. */
  validBefore: number
  /** JSON of the x402 payment: the only form in which it is ever sent. From a channel, its id. */
  credential: string
}

export type Stored = Payment & {
  state: State
  /** Millionths of a dollar that count against the limit of the day. */
  usedMicros: bigint
  transaction: string | undefined
  redeem: { token: string; until: string } | undefined
}

/** The state of a payment on the chain: it can move no money, or its cost. */
export type Fate = { kind: 'void' } | { kind: 'charged'; micros: bigint }

export type Spending = ReturnType<typeof openSpending>

type Change = {
  state: State
  transaction?: string | undefined
  redeem?: Stored['redeem']
}

/** Identifies a call: the same for the same tool and arguments, of one wallet at one gateway. */
export function callIdOf(
  { gateway, payer }: { gateway: { origin: string }; payer: Address },
  name: string,
  canonicalArgs: string,
): string {
  const parts = [gateway.origin, payer, name, canonicalArgs]
  return Crypto.sha256(parts.join('\n'))
}

/** The file cannot be used. */
export class SpendingError extends CommandError {
  override readonly name = 'SpendingError'
}

const version = 2
const keptMs = 30 * 86_400_000

const schema = `
CREATE TABLE payments (
  id TEXT PRIMARY KEY,
  call TEXT NOT NULL,
  tool TEXT NOT NULL,
  args TEXT NOT NULL,
  network TEXT NOT NULL,
  asset TEXT NOT NULL,
  method TEXT NOT NULL CHECK (method IN ('eip3009', 'permit2')),
  scheme TEXT NOT NULL CHECK (scheme IN ('exact', 'upto', 'channel')),
  payer TEXT NOT NULL,
  payee TEXT NOT NULL,
  nonce TEXT NOT NULL,
  signed_micros TEXT NOT NULL,
  used_micros TEXT NOT NULL,
  amount TEXT NOT NULL,
  valid_before INTEGER NOT NULL,
  credential TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'redeemable', 'delivered', 'over')),
  -- 1: no fact of the chain can lower what counts.
  is_final INTEGER NOT NULL CHECK (is_final IN (0, 1)),
  -- Named by the gateway, not proven.
  tx TEXT,
  redeem_token TEXT,
  redeem_until TEXT,
  day TEXT NOT NULL,
  signed_at INTEGER NOT NULL,
  UNIQUE (network, asset, payer, nonce),
  CHECK ((state = 'redeemable') = (redeem_token IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX payments_unfinished ON payments (call) WHERE state IN ('open', 'redeemable');
CREATE INDEX payments_day ON payments (day);
PRAGMA user_version = ${version};
`

/**
 * Opens the file and creates it for its owner only. `now` is unix ms; `busyMs` is how long it waits for
 * another process. Throws a SpendingError.
 */
export function openSpending(file: string, now: () => number, busyMs = 5_000) {
  let db: Database | undefined
  try {
    mkdirSync(dirname(file), { recursive: true, mode: 0o700 })
    // SQLite would create it for every reader, and it has credentials and redeem tokens.
    closeSync(openSync(file, 'a', 0o600))
    chmodSync(file, 0o600)
    db = new Database(file, { readwrite: true, strict: true, safeIntegers: true })
    db.run(`PRAGMA busy_timeout = ${busyMs}`)
    beginLog(db, busyMs)
    // A crash of the machine must not forget a payment that was sent.
    db.run('PRAGMA synchronous = FULL')
    prepare(db, file)
    // A clock that is ahead for a moment must not remove what counts today.
    db.query(
      `DELETE FROM payments WHERE state IN ('delivered', 'over')
       AND signed_at < MIN(?, (SELECT MAX(signed_at) FROM payments)) - ?`,
    ).run(now(), keptMs)
    return from(db, file, now)
  } catch (error) {
    db?.close()
    if (error instanceof SpendingError) throw error
    throw new SpendingError(`The state file ${file} cannot be used (${codeOf(error)}).`)
  }
}

/** SQLite does not wait by itself where another process begins the log of a new file. */
function beginLog(db: Database, busyMs: number): void {
  const stepMs = 5
  for (let waitedMs = 0; ; waitedMs += stepMs)
    try {
      db.run('PRAGMA journal_mode = WAL')
      return
    } catch (error) {
      if (codeOf(error) !== 'SQLITE_BUSY' || waitedMs >= busyMs) throw error
      Bun.sleepSync(stepMs)
    }
}

function prepare(db: Database, file: string): void {
  const create = db.transaction(() => {
    const found = db.query<{ user_version: bigint }, []>('PRAGMA user_version').get()?.user_version
    if (found === BigInt(version)) return
    const tables = db.query('SELECT name FROM sqlite_schema').all()
    if (found !== 0n || tables.length > 0)
      throw new SpendingError(
        `${file} is not a state file of this version of turnpike mcp: name another with --state.`,
      )
    db.run(schema)
  })
  create.immediate()
}

type Parsed = 'signedMicros' | 'usedMicros' | 'validBefore' | 'transaction' | 'redeem'

type Row = Omit<Stored, Parsed> & {
  signedMicros: string
  usedMicros: string
  validBefore: bigint
  tx: string | null
  token: string | null
  until: string | null
}

const read = `SELECT id, call, tool, args, network, asset, method, scheme, payer, payee, nonce, amount,
  credential, state, signed_micros AS signedMicros, used_micros AS usedMicros,
  valid_before AS validBefore, tx, redeem_token AS token, redeem_until AS until FROM payments`

function from(db: Database, file: string, now: () => number) {
  const today = () => dayOf(now())
  const isOpen = "state IN ('open', 'redeemable')"
  const select = (which: string, ...values: string[]) =>
    db
      .query<Row, string[]>(`${read} ${which}`)
      .all(...values)
      .map(storedOf)
  const findUnfinished = (call: string): Stored | undefined =>
    select(`WHERE call = ? AND ${isOpen}`, call)[0]
  const opened = idOf(file)
  // Includes payments of later days, so that a clock that is set back does not free the limit.
  const sum = db.query<{ total: bigint; payments: bigint }, [string]>(
    'SELECT COALESCE(SUM(CAST(used_micros AS INTEGER)), 0) AS total, COUNT(*) AS payments ' +
      "FROM payments WHERE day >= ? AND signed_micros <> '0'",
  )
  const spentOn = (day: string) => {
    const { total = 0n, payments = 0n } = sum.get(day) ?? {}
    return { spentMicros: total, payments: Number(payments) }
  }
  const reserve = db.transaction((payment: Payment, limitMicros: bigint) => {
    // The file was removed or replaced, so later processes would not read what is written to it.
    if (idOf(file) !== opened)
      throw new SpendingError(
        `The state file ${file} was removed or replaced: start turnpike mcp again.`,
      )
    const unfinished = findUnfinished(payment.call)
    if (unfinished) return unfinished
    const day = today()
    const { spentMicros } = spentOn(day)
    const { signedMicros } = payment
    if (signedMicros > 0n && spentMicros + signedMicros > limitMicros) return { spentMicros }
    insert(db, payment, day, now())
    // The payment is read back, so that only stored bytes leave the process.
    const written = findUnfinished(payment.call)
    if (written === undefined) throw new Error('a payment was not written')
    return written
  })
  const refund = db.transaction((channel: string, micros: bigint) => {
    let left = micros
    // A deposit that may still arrive counts whole: only the chain makes one final.
    const ofToday =
      "WHERE call = ? AND day >= ? AND scheme = 'channel' AND is_final = 1 ORDER BY signed_at DESC"
    for (const { id, usedMicros } of select(ofToday, channel, today())) {
      const part = Amount.least(left, usedMicros)
      left -= part
      db.run('UPDATE payments SET used_micros = ? WHERE id = ?', [String(usedMicros - part), id])
    }
  })
  return {
    file,
    findUnfinished,
    /**
     * Gives the unfinished payment of the same call, perhaps of another process; else this one, as it was
     * written to the disk. `spentMicros`: nothing was written, because it would exceed the limit of the day.
     */
    reserve: (payment: Payment, limitMicros: bigint) =>
      guarded(file, () => reserve.immediate(payment, limitMicros)),
    /** Records the end of an unfinished payment, or its redeem token. Leaves a finished one as it is. */
    update: (id: string, change: Change) => guarded(file, () => update(db, id, change)),
    /** The sum of the current day. */
    today: () => spentOn(today()),
    /** Payments of the current day whose amount the chain may still lower; at most 64. */
    unsettled: () => select('WHERE day >= ? AND is_final = 0 LIMIT 64', today()),
    /** Records a state that was read from the chain. */
    settle: (id: string, fate: Fate) => guarded(file, () => settle(db, id, fate)),
    /** Counts what a channel gave back against its deposits of today, the newest first. */
    refund: (channel: string, micros: bigint) =>
      guarded(file, () => refund.immediate(channel, micros)),
    /**
     * Gives up the calls that are paid from a channel, whose vouchers are void while it is empty. Returns
     * whether there was one.
     */
    leave: (channel: string) => guarded(file, () => db.run(leave, [channel]).changes > 0),
    /** Unfinished payments, the newest first; at most 100. */
    unfinished: () => select(`WHERE ${isOpen} ORDER BY signed_at DESC LIMIT 100`),
    close: () => db.close(),
  }
}

function insert(db: Database, payment: Payment, day: string, now: number): void {
  const { signedMicros, ...texts } = payment
  db.query(
    `INSERT INTO payments (id, call, tool, args, network, asset, method, scheme, payer, payee, nonce,
     signed_micros, used_micros, amount, valid_before, credential, state, is_final, day, signed_at)
     VALUES ($id, $call, $tool, $args, $network, $asset, $method, $scheme, $payer, $payee, $nonce,
     $micros, $micros, $amount, $validBefore, $credential, 'open', $micros = '0', $day, $now)`,
  ).run({ ...texts, micros: String(signedMicros), day, now })
}

function update(db: Database, id: string, { state, transaction, redeem }: Change): void {
  const isUnfinished = state === 'open' || state === 'redeemable'
  // An exact payment whose answer was delivered has cost what was signed.
  db.query(
    `UPDATE payments SET state = ?1, tx = COALESCE(?2, tx), redeem_token = ?3, redeem_until = ?4,
     credential = CASE WHEN ?5 THEN credential ELSE '' END,
     is_final = CASE WHEN ?1 = 'delivered' AND scheme = 'exact' THEN 1 ELSE is_final END
     WHERE id = ?6 AND state IN ('open', 'redeemable')`,
  ).run(
    ...[state, transaction ?? null, redeem?.token ?? null, redeem?.until ?? null],
    ...[isUnfinished ? 1 : 0, id],
  )
}

function settle(db: Database, id: string, fate: Fate): void {
  if (fate.kind === 'charged') {
    const charge = 'UPDATE payments SET used_micros = ?, is_final = 1 WHERE id = ? AND is_final = 0'
    db.query(charge).run(String(fate.micros), id)
    return
  }
  db.query(
    `UPDATE payments SET used_micros = '0', is_final = 1, credential = '', redeem_token = NULL,
     redeem_until = NULL, state = CASE state WHEN 'delivered' THEN state ELSE 'over' END
     WHERE id = ? AND is_final = 0`,
  ).run(id)
}

const leave =
  "UPDATE payments SET state = 'over', credential = '' WHERE credential = ? AND state = 'open'"

function storedOf({ tx, token, until, ...row }: Row): Stored {
  return {
    ...row,
    signedMicros: BigInt(row.signedMicros),
    usedMicros: BigInt(row.usedMicros),
    validBefore: Number(row.validBefore),
    transaction: tx ?? undefined,
    redeem: token === null ? undefined : { token, until: until ?? '' },
  }
}

function guarded<T>(file: string, run: () => T): T {
  try {
    return run()
  } catch (error) {
    if (error instanceof SpendingError) throw error
    throw new SpendingError(`The state file ${file} cannot be written (${codeOf(error)}).`)
  }
}

/** Differs after the file was removed or replaced. */
function idOf(file: string): string {
  const found = statSync(file, { bigint: true, throwIfNoEntry: false })
  return found === undefined ? '' : `${found.dev}:${found.ino}`
}
