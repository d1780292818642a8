import { settlementAddress } from '../harness/channel-contract'
import { lossesPerDay } from './configuration'
import type { Finding, Kind } from './finding'
import { type Ledger, type Moved, readLedger, readTransfers } from './ledger'
import { type Disturbance, isOfPaused } from './overlaps'
import { nap } from './payers'
import type { Purchase } from './purchase'
import type { AuthorizationRow, PaymentRow, Rows, Store } from './rows'
import type { Setup } from './setup'
import type { Call } from './upstream'
import { type ByUseCase, dueOf, judgeByUse, lossOf } from './upto-audit'

export type Audit = {
  findings: readonly Finding[]
  /** For the report, in its order. */
  figures: readonly (readonly [name: string, value: number | string])[]
}

export type Evidence = {
  setup: Setup
  purchases: readonly Purchase[]
  calls: readonly Call[]
  store: Store
  programFaults: readonly string[]
  /** When the program was killed, unix ms. */
  killedAt: readonly number[]
  /** What others than the payers have moved to the payee, by network, atomic. */
  moved?: ReadonlyMap<string, bigint>
  /** Of several gateways. */
  disturbances?: readonly Disturbance[]
}

type Case = Evidence & {
  ledger: Ledger
  stored: Rows
  rowOf: (purchase: Purchase) => PaymentRow | undefined
  authorizationOf: (purchase: Purchase) => AuthorizationRow | undefined
  callsOf: ReadonlyMap<string, readonly Call[]>
}

/**
 * Waits until the database has nothing unfinished and the chains have everything that it has as
 * confirmed. Returns what is missing after the time limit, by `more` too; undefined when nothing is.
 */
export async function waitUntilEnded(
  setup: Setup,
  store: Store,
  limitMs: number,
  more: () => Promise<string | undefined> = async () => undefined,
): Promise<string | undefined> {
  const deadline = Date.now() + limitMs
  for (;;) {
    const missing = (await findMissing(setup, store)) ?? (await more())
    if (missing === undefined || Date.now() > deadline) return missing
    await nap(250, AbortSignal.timeout(1_000))
  }
}

async function findMissing(setup: Setup, store: Store): Promise<string | undefined> {
  const open = Object.entries(await store.unfinished()).filter(([, count]) => count > 0)
  if (open.length > 0)
    return `${open.map(([name, count]) => `${count} ${name}`).join(', ')} have not ended`
  const included = new Set((await readTransfers(setup)).map(({ transaction }) => transaction))
  const gone = (await store.rows()).payments.filter(
    ({ state, method, transaction_hash }) =>
      state === 'confirmed' &&
      method !== 'channel' &&
      !included.has(transaction_hash as `0x${string}`),
  )
  if (gone.length === 0) return undefined
  return `${gone.length} confirmed payments are not on chain: ${JSON.stringify(gone.slice(0, 5))}`
}

/** Compares chains, database, upstream and buyers. The program must have ended. */
export async function audit(evidence: Evidence): Promise<Audit> {
  const { setup, purchases, calls, store, programFaults } = evidence
  const ledger = await readLedger(setup, purchases)
  const stored = await store.rows()
  const byMoney = new Map(stored.payments.map((row) => [keyOf(row), row]))
  const authorized = new Map(stored.authorizations.map((row) => [keyOf(row), row]))
  const callsOf = Map.groupBy(calls, ({ serial }) => serial)
  const moneyOf = ({ site, payer, nonce }: Purchase) =>
    keyOf({ network: site.id, payer: payer.account.address, nonce: nonce ?? '' })
  const all: Case = {
    ...evidence,
    ledger,
    stored,
    rowOf: (purchase) => byMoney.get(moneyOf(purchase)),
    authorizationOf: (purchase) => authorized.get(moneyOf(purchase)),
    callsOf,
  }
  const findings = [
    ...purchases.flatMap((purchase) => auditPurchase(all, purchase)),
    ...auditCalls(all),
    ...auditBalances(all),
    ...auditRows(all),
    ...auditLosses(all),
    ...programFaults.map((text): Finding => ({ kind: 'program', text })),
  ]
  return { findings, figures: figuresOf(all) }
}

/**
 * Whether the promised first attempt and five redemptions were made, and the last of them failed.
 */
function isUsedUp({ said }: Purchase, calls: readonly Call[]): boolean {
  const isExhausted = said.at(-1)?.code === 'redeem-exhausted'
  return isExhausted && calls.length >= 6 && calls.at(-1)?.end === 'failed'
}

function auditPurchase(all: Case, purchase: Purchase): Finding[] {
  const { serial, received, end, said } = purchase
  if (purchase.scheme === 'upto') {
    const { findings } = judgeByUse(byUseOf(all, purchase))
    return findings.map(({ kind, text }) => ({
      kind,
      text: `${text}\n${explain(all, purchase)}`,
    }))
  }
  const isPaid = all.ledger.paid.has(serial)
  const calls = all.callsOf.get(serial) ?? []
  const findings: Finding[] = []
  const add = (kind: Kind, what: string) =>
    findings.push({ kind, text: `${what}\n${explain(all, purchase)}` })

  if (isPaid && end === 'open') add('stuck', 'paid, and the buyer still asks')
  if (isPaid && end === 'refused' && !isUsedUp(purchase, calls))
    add('lost', 'paid, and the buyer was refused')
  const id = all.rowOf(purchase)?.id
  if (received.some(({ paymentId }) => paymentId !== id))
    add('mismatch', 'the answer was made for another payment')
  if (!isPaid && received.length > 0) add('unpaid', 'the buyer has an answer that was not paid')
  if (!isPaid && received.length === 0 && calls.some((call) => call.end === 'complete'))
    add('unpaid', 'the upstream answered and was not paid')
  if (!isPaid && end === 'refused' && said.at(-1)?.code !== 'payment-expired')
    add('refused', 'a valid credential was refused')
  if (!isPaid && end === 'open') add('stuck', 'neither paid nor refused')
  if (new Set(calls.map(({ paymentId }) => paymentId)).size > 1)
    add('double', 'the upstream worked for two payments of one request')
  const answeredAt = received[0]?.at
  const isAgain = (call: Call) =>
    answeredAt !== undefined &&
    call.at > answeredAt &&
    !isOfPaused(call, answeredAt, all.disturbances ?? [])
  if (calls.some(isAgain)) add('double', 'the upstream worked again after the buyer had the answer')
  return findings
}

function byUseOf(all: Case, purchase: Purchase): ByUseCase {
  return {
    purchase,
    authorization: all.authorizationOf(purchase),
    payment: all.rowOf(purchase),
    calls: all.callsOf.get(purchase.serial) ?? [],
    isPaid: all.ledger.paid.has(purchase.serial),
    killedAt: all.killedAt,
    disturbances: all.disturbances ?? [],
  }
}

/** Requests of the upstream without a committed attempt. */
function auditCalls({ calls, stored }: Case): Finding[] {
  const rows = new Map(stored.payments.map((row) => [row.id, row]))
  const authorized = new Set(stored.authorizations.map(({ id }) => id))
  return [...Map.groupBy(calls, ({ paymentId }) => paymentId)].flatMap(([id, made]): Finding[] => {
    const row = rows.get(id)
    // The first call of an authorization is no attempt; each purchase by use is judged alone.
    if (authorized.has(id)) return []
    if (row === undefined)
      return [{ kind: 'unpaid', text: `the upstream worked for an unknown payment ${id}` }]
    if (made.length <= row.attempts) return []
    const text = `${made.length} upstream calls for ${row.attempts} attempts\n  ${JSON.stringify(row)}`
    return [{ kind: 'double', text: `${text}\n  ${JSON.stringify(made)}` }]
  })
}

function auditBalances(all: Case): Finding[] {
  const { ledger, purchases, stored, moved } = all
  const owed = new Map<string, bigint>(moved)
  for (const purchase of purchases) {
    const { serial, site, payer, scheme, amountAtomic } = purchase
    if (!ledger.paid.has(serial)) continue
    const due = scheme === 'upto' ? dueOf(byUseOf(all, purchase)) : amountAtomic
    for (const key of [`${site.id} ${payer.index}`, site.id])
      owed.set(key, (owed.get(key) ?? 0n) + due)
  }
  const findings: Finding[] = []
  for (const { site, payer, spentAtomic } of ledger.balances) {
    const due = owed.get(`${site.id} ${payer.index}`) ?? 0n
    if (spentAtomic === due) continue
    const rows = stored.payments.filter(
      (row) => row.network === site.id && equal(row.payer, payer.account.address),
    )
    const text = `payer ${payer.index} on ${site.id} spent ${spentAtomic}, its used credentials say ${due}`
    const lines = rows.map((row) => `\n  ${JSON.stringify(row)}`)
    findings.push({ kind: 'double', text: text + lines.join('') })
  }
  for (const { site, atomic } of ledger.received) {
    const due = owed.get(site.id) ?? 0n
    if (atomic === due) continue
    const text = `the payee has ${atomic} on ${site.id}, the used credentials say ${due}`
    findings.push({ kind: 'mismatch', text })
  }
  if (ledger.strayAtomic !== 0n)
    findings.push({ kind: 'mismatch', text: `${ledger.strayAtomic} ended at a relayer` })
  return findings
}

/**
 * Checks that each confirmed payment has a transfer of its own, each transfer a payment, and that
 * nothing is open.
 */
function auditRows(all: Case): Finding[] {
  const { stored, ledger, purchases, rowOf } = all
  const unassigned = new Map<string, Moved[]>()
  for (const moved of ledger.transfers) {
    // A sweep of channels, which have an audit of their own.
    if (equal(moved.payer, settlementAddress)) continue
    const key = transferKey(moved.network, moved.transaction, moved.payer, moved.amountAtomic)
    unassigned.set(key, [...(unassigned.get(key) ?? []), moved])
  }
  const findings: Finding[] = []
  for (const row of stored.payments) {
    if (row.state === 'broadcast' || row.state === 'reverted')
      findings.push({ kind: 'stuck', text: `a payment has not ended\n${explainRow(all, row)}` })
    if (row.state !== 'confirmed' || row.method === 'channel') continue
    const key = transferKey(row.network, row.transaction_hash, row.payer, row.amount_atomic)
    if (unassigned.get(key)?.pop() === undefined)
      findings.push({
        kind: 'mismatch',
        text: `a confirmed payment has no transfer of its own\n${explainRow(all, row)}`,
      })
  }
  for (const moved of [...unassigned.values()].flat())
    findings.push({ kind: 'mismatch', text: `no payment has the transfer ${printed(moved)}` })
  for (const purchase of purchases) {
    const state = rowOf(purchase)?.state
    if (!ledger.paid.has(purchase.serial) || state === 'confirmed') continue
    const text = `paid, and the payment is ${state ?? 'unknown'}\n${explain(all, purchase)}`
    findings.push({ kind: 'mismatch', text })
  }
  for (const row of stored.transactions)
    if (row.state === 'signed' || row.state === 'sent')
      findings.push({ kind: 'stuck', text: `a transaction has not ended: ${JSON.stringify(row)}` })
  return findings
}

/** What payers had for nothing is within the limit of the merchant. */
function auditLosses({ stored }: Case): Finding[] {
  const lost = lossOf(stored.authorizations, stored.payments)
  if (lost <= lossesPerDay) return []
  return [{ kind: 'unpaid', text: `payers had ${lost} for nothing, the limit is ${lossesPerDay}` }]
}

function figuresOf(all: Case): Audit['figures'] {
  const { purchases, calls, stored, ledger } = all
  const count = (test: (purchase: Purchase) => boolean) => purchases.filter(test).length
  const included = new Set(
    stored.transactions.filter(({ state }) => state === 'mined').map(({ hash }) => hash),
  )
  const carrying = new Set(stored.payments.map((row) => row.transaction_hash))
  const settling = [...included].filter((hash) => carrying.has(hash)).length
  const schemes = Map.groupBy(purchases, ({ scheme }) => scheme)
  const said = purchases.flatMap((purchase) => purchase.said)
  const waits = purchases
    .flatMap(({ received, signedAt = 0 }) => received.map(({ at }) => at - signedAt))
    .sort((left, right) => left - right)
  const codes = Map.groupBy(said, ({ status, code }) => `${status} ${code}`.trim())
  return [
    ['purchases', purchases.length],
    ...[...schemes].map(([scheme, list]) => [`  ${scheme}`, list.length] as const),
    ['paid on chain', ledger.paid.size],
    ['answers received', count(({ received }) => received.length > 0)],
    ['  after a failure of the upstream', count((p) => p.redeems && p.received.length > 0)],
    ['median ms from signing to the answer', waits[waits.length >> 1] ?? 0],
    ['longest', waits.at(-1) ?? 0],
    ['credentials that expired', count(isExpired)],
    ...byUseFigures(all),
    ['payments in the database', stored.payments.length],
    ['attempts', stored.payments.reduce((sum, { attempts }) => sum + attempts, 0)],
    ['upstream calls', calls.length],
    [
      'lost requests by use',
      stored.authorizations.filter(({ failed_at, state }) => failed_at && state !== 'sent').length,
    ],
    [
      '  beyond what their payers paid, atomic',
      String(lossOf(stored.authorizations, stored.payments)),
    ],
    ['transactions that settled', settling],
    ['payments per transaction', (ledger.paid.size / Math.max(1, settling)).toFixed(2)],
    ...[...codes].map(([code, list]) => [`answers ${code}`, list.length] as const),
  ]
}

/** How the purchases by use ended, and how often. */
function byUseFigures(all: Case): Audit['figures'] {
  const ends = all.purchases
    .filter(({ scheme }) => scheme === 'upto')
    .map((purchase) => judgeByUse(byUseOf(all, purchase)).end ?? 'with a finding')
  const counts = [...Map.groupBy(ends, (end) => end)].toSorted(([a], [b]) => a.localeCompare(b))
  return counts.map(([end, list]) => [`upto: ${end}`, list.length] as const)
}

function isExpired({ end, said }: Purchase): boolean {
  return end === 'refused' && said.at(-1)?.code === 'payment-expired'
}

function explain(all: Case, purchase: Purchase): string {
  const { serial, payer, site, scheme, nonce, said, url, signedAt, init } = purchase
  const row = all.rowOf(purchase)
  const start = signedAt ?? 0
  const lines = [
    `purchase ${serial}: ${scheme} on ${site.id} by ${payer.account.address}, nonce ${nonce}, ${url}`,
    `signed ${new Date(start).toISOString()}, ended ${purchase.end}, redeems ${purchase.redeems}, sends ${printed(init.headers)}`,
    row === undefined ? 'no payment in the database' : explainRow(all, row),
    ...(scheme === 'upto' ? [printed(all.authorizationOf(purchase)), printed(purchase.byUse)] : []),
    `${said.filter(({ code }) => code === 'no-answer').length} times no answer`,
    ...said
      .filter(({ code }) => code !== 'no-answer')
      .slice(-12)
      .map((each) => `+${each.at - start} ms ${printed(each)}`),
    ...(all.callsOf.get(serial) ?? []).map((call) => `+${call.at - start} ms ${printed(call)}`),
  ]
  return lines.map((line) => `  ${line.trim()}`).join('\n')
}

function explainRow({ stored, ledger }: Case, row: PaymentRow): string {
  const carrying = stored.transactions.filter(({ payment_id }) => payment_id === row.id)
  const hashes = new Set(carrying.map(({ hash }) => hash))
  const moved = ledger.transfers.filter(
    ({ transaction, payer }) => hashes.has(transaction) && equal(payer, row.payer),
  )
  const some = carrying.length > 6 ? [...carrying.slice(0, 3), ...carrying.slice(-3)] : carrying
  return [row, `${carrying.length} transactions`, ...some, ...moved]
    .map((each) => `  ${printed(each)}`)
    .join('\n')
}

function printed(value: unknown): string {
  if (value === undefined) return 'none'
  return JSON.stringify(value, (_, each) => (typeof each === 'bigint' ? String(each) : each))
}

function keyOf({ network, payer, nonce }: { network: string; payer: string; nonce: string }) {
  return `${network} ${payer} ${nonce}`.toLowerCase()
}

function transferKey(network: string, hash: string, payer: string, amount: bigint | string) {
  return `${network} ${hash} ${payer} ${amount}`.toLowerCase()
}

function equal(left: string, right: string): boolean {
  return left.toLowerCase() === right.toLowerCase()
}
