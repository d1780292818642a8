import { type Hex, keccak256, stringToBytes, toEventSelector } from 'viem'
import { mintedAtomic as refunderAtomic } from '../../src/demo/chains'
import { poolPerDay } from './configuration'
import type { Finding, Kind } from './finding'
import { logsOf, paidOn } from './ledger'
import { capacities, type Sale, type Use } from './returning'
import type { Entitled, EntitlementRow, PaymentRow, RefundRow, UseRow } from './rows'
import { mintedAtomic, refunder, type Setup, tokensOf } from './setup'
import type { Call } from './upstream'

/**
 * Compares what buyers who came back have got with the counters of the program, and the refunds of its
 * books with those on the chains.
 */

export type Evidence = {
  setup: Setup
  sales: readonly Sale[]
  uses: readonly Use[]
  /** Those of these buyers. */
  calls: readonly Call[]
  payments: readonly PaymentRow[]
  /** All rows that were ever seen: old ones are deleted. */
  entitled: Entitled
  /** Whether the program was killed or disturbed between these times, unix ms. */
  isDisturbed: (from: number, until: number) => boolean
  /** Whether the chains keep their blocks and the nodes answer right. */
  isSteady: boolean
  /** Whether a balancer has left a gateway that may still work on a request, by its serial. */
  hasLeft?: ((serial: string) => boolean) | undefined
  /** Payments whose redemption ended before the program looked for the last time. */
  isOver: (paymentId: string) => boolean
}

type Case = Evidence & {
  paid: ReadonlySet<string>
  paymentOf: (sale: Sale) => PaymentRow | undefined
  refundOf: ReadonlyMap<string, RefundRow>
  useOf: ReadonlyMap<string, UseRow>
  entitlementOf: ReadonlyMap<string, EntitlementRow>
  repaid: readonly Repaid[]
}

/** A transfer of the account that refunds. */
type Repaid = { nonce: Hex; to: string; amountAtomic: bigint; transaction: Hex; network: string }

/** The end of an answer is recorded within this time after its last byte was written, ms. */
const recordMs = 1_000

const transferTopic = toEventSelector('Transfer(address,address,uint256)')
const usedTopic = toEventSelector('AuthorizationUsed(address,bytes32)')

/** What the payee has got from these buyers, by network. */
export async function movedBy(sales: readonly Sale[], setup: Setup): Promise<Map<string, bigint>> {
  const paid = await paidSerials(sales, setup)
  const moved = new Map<string, bigint>()
  for (const { serial, site, amountAtomic } of sales)
    if (paid.has(serial)) moved.set(site.id, (moved.get(site.id) ?? 0n) + amountAtomic)
  return moved
}

async function paidSerials(sales: readonly Sale[], { sites }: Setup): Promise<Set<string>> {
  const purchases = sales.map((sale) => ({
    ...{ ...sale, payer: sale.wallet, scheme: 'x402-eip3009' as const },
  }))
  const serials = await Promise.all(sites.map((site) => paidOn(site, purchases)))
  return new Set(serials.flat())
}

/** The program must have ended. */
export async function auditReturning(evidence: Evidence): Promise<Finding[]> {
  const { setup, sales, payments, entitled } = evidence
  const byMoney = new Map(payments.map((row) => [moneyOf(row.network, row.payer, row.nonce), row]))
  const all: Case = {
    ...evidence,
    paid: await paidSerials(sales, setup),
    paymentOf: ({ site, wallet, nonce }) =>
      byMoney.get(moneyOf(site.id, wallet.account.address, nonce ?? '')),
    refundOf: new Map(entitled.refunds.map((row) => [row.payment_id, row])),
    useOf: new Map(entitled.uses.map((row) => [row.id, row])),
    entitlementOf: new Map(entitled.entitlements.map((row) => [row.id, row])),
    repaid: await readRepaid(setup),
  }
  return [
    ...sales.flatMap((sale) => auditSale(all, sale)),
    ...all.uses.flatMap((use) => auditUse(all, use)),
    ...auditCounters(all),
    ...auditCalls(all),
    ...auditRefunds(all),
    ...(await auditBalances(all)),
  ]
}

/** The figures of the report. */
export function returningFigures({ sales, uses, entitled, isDisturbed }: Evidence) {
  const ends = Map.groupBy(uses, ({ route, result }) => {
    if (result.kind !== 'said') return `${route}: ${result.kind}`
    return `${route}: ${result.status} ${result.reason || result.code}`
  })
  const free = uses.filter((use) => isFree(use, new Map(entitled.uses.map((row) => [row.id, row]))))
  const isLate = ({ sentAt, endedAt = sentAt }: Use) => !isDisturbed(sentAt, endedAt + 20)
  const states = Map.groupBy(entitled.refunds, ({ reason, job, paid_hash }) =>
    paid_hash === null ? `refunds ${reason}: ${job}` : `refunds ${reason}: paid`,
  )
  const kinds = Map.groupBy(sales, ({ kind, end }) => `sales ${kind}: ${end}`)
  const counts = [...kinds, ...ends, ...states].map(([name, list]) => [name, list.length] as const)
  return [
    ...counts.toSorted(([one], [other]) => one.localeCompare(other)),
    ['uses given back although their answer arrived', free.length] as const,
    ['  by a kill more than 20 ms later', free.filter(isLate).length] as const,
  ]
}

/** Whether an answer of an entitlement was not counted. */
function isFree({ nonce, result }: Use, useOf: Case['useOf']): boolean {
  if (nonce === undefined || result.kind !== 'answered' || result.entitlement === '') return false
  return useOf.get(nonce)?.state !== 'delivered'
}

const finding = (kind: Kind, what: string, ...of: readonly unknown[]): Finding => ({
  kind,
  text: [what, ...of.map((each) => `  ${printed(each)}`)].join('\n'),
})

function auditSale(all: Case, sale: Sale): Finding[] {
  const { kind, end, said, serial } = sale
  const row = all.paymentOf(sale)
  const isPaid = all.paid.has(serial)
  const refund = row && all.refundOf.get(row.id)
  const add = (of: Kind, what: string) => [finding(of, what, sale, row, refund)]
  if (!isPaid) {
    if (end === 'answered') return add('unpaid', 'an answer that was not paid')
    if (end === 'refused' && said.at(-1)?.code !== 'payment-expired')
      return add('refused', 'a valid credential was refused')
    return end === 'open' && sale.nonce ? add('stuck', 'neither paid nor refused') : []
  }
  if (row === undefined) return add('mismatch', 'paid, and there is no payment')
  if (end === 'open') return add('stuck', 'paid, and the buyer still asks')
  if (kind === 'lost') {
    if (end === 'answered') return add('mismatch', 'the upstream of this merchant answers nothing')
    if (refund === undefined && all.isOver(row.id))
      return add('lost', 'undelivered and not refunded')
    return []
  }
  const id = `${kind}|${row.id}`
  const own = all.entitlementOf.get(id)
  if (own === undefined) return add('lost', `paid, and there is no entitlement ${id}`)
  if (own.uses_max !== capacities[kind]) return add('mismatch', `it has ${own.uses_max} uses`)
  const isExhausted = said.at(-1)?.code === 'redeem-exhausted'
  if (kind === 'again' && end === 'refused' && !refund && !sale.refundAt && !isExhausted)
    return add('lost', 'paid, and the buyer was refused')
  return []
}

function auditUse(all: Case, use: Use): Finding[] {
  const { nonce, result, sentAt, endedAt = Number.POSITIVE_INFINITY } = use
  const row = nonce === undefined ? undefined : all.useOf.get(nonce)
  const isDisturbed = all.isDisturbed(sentAt, endedAt + recordMs)
  const add = (of: Kind, what: string) => [finding(of, what, use, row)]
  switch (result.kind) {
    case 'answered': {
      // It continued the payment, whose delivery a kill has hidden if its buyer had it.
      if (result.entitlement === '') {
        const { end, signedAt = 0, answeredAt = sentAt } = use.sale ?? {}
        const isHidden = answeredAt >= sentAt || all.isDisturbed(signedAt, answeredAt + recordMs)
        return end === undefined || !isHidden ? add('unpaid', 'an answer without a use') : []
      }
      if (nonce === undefined) return []
      if (isFree(use, all.useOf) && !isDisturbed)
        return add('unpaid', `the answer of a use that is ${row?.state ?? 'unknown'}`)
      return row !== undefined && row.wallet.toLowerCase() !== walletOf(use)
        ? add('mismatch', 'the use of another wallet')
        : []
    }
    case 'lost':
      return row?.state === 'delivered' && !isDisturbed
        ? add('lost', 'a use was counted, and the buyer has nothing')
        : []
    case 'said': {
      const { status, code, reason } = result
      if (row?.state === 'delivered') return add('lost', 'a refused use was counted')
      if (code === 'not-entitled') return auditRefusal(all, use, reason)
      const isLater = status >= 500 || status === 429 || code === 'payment-in-progress'
      if (isLater || (use.sale !== undefined && isGone(all, use))) return []
      // A client may send a request again by itself when its connection broke.
      if (reason === 'invalid_siwx_nonce' && row !== undefined) return []
      if (nonce === undefined && [402, 409, 410].includes(status))
        return auditRefusal(all, use, reason)
      return add('refused', 'a valid request was refused')
    }
  }
}

/** Whether a refund may have ended what the use is of. */
function isGone({ refundOf, paymentOf }: Case, { sale }: Use): boolean {
  if (sale === undefined) return false
  return sale.refundAt !== undefined || refundOf.has(paymentOf(sale)?.id ?? '')
}

/** Whether the wallet had room when it was refused. */
function auditRefusal(all: Case, use: Use, reason: string): Finding[] {
  const { route, sentAt, endedAt = sentAt, sale } = use
  if (!all.isSteady && /^(no_entitlement|trial_balance)/.test(reason)) return []
  if (reason.startsWith('trial_balance')) return [finding('refused', `refused: ${reason}`, use)]
  const isOther = (each: Use) =>
    each !== use && each.route === route && walletOf(each) === walletOf(use) && each.sale === sale
  // Uses that may have been counted at some time of the refused one.
  const taken = all.uses.filter(
    (each) => isOther(each) && each.sentAt <= endedAt && mayCount(all, each, sentAt),
  ).length
  const has = () => {
    if (route === 'again')
      return sale?.end === 'answered' && !isGone(all, use) ? capacities.again : 0
    if (route !== 'pass') return capacities[route]
    const passes = all.sales.filter(
      (each) =>
        each.kind === 'pass' &&
        walletOf(each) === walletOf(use) &&
        (each.answeredAt ?? Number.POSITIVE_INFINITY) <= sentAt &&
        each.refundAt === undefined,
    )
    return passes.length * capacities.pass
  }
  if (route === 'pool' && reason === 'trial_day_spent') {
    const all_ = all.uses.filter((each) => each.route === 'pool' && mayCount(all, each, sentAt))
    if (all_.filter((each) => each.sentAt <= endedAt).length >= poolPerDay) return []
    return [finding('refused', 'refused while the pool had room', use)]
  }
  // The first gateway that had it may hold a place for it.
  const own = all.hasLeft?.(use.serial) ? 1 : 0
  if (taken + own >= has()) return []
  return [finding('refused', `refused with ${taken} of ${has()} uses taken`, use)]
}

/** Whether it took a place: for good, or until its end. */
function mayCount({ useOf }: Case, { nonce, result, endedAt }: Use, from: number): boolean {
  // Also one that was refused at a second gateway, while the first still worked on it.
  if (nonce !== undefined && useOf.has(nonce)) return true
  if (result.kind === 'lost' && nonce !== undefined) return false
  if (result.kind !== 'said') return true
  // A failed one held its place while it ran; its end is recorded before its answer is sent.
  return result.status >= 500 && (endedAt ?? from) >= from
}

function auditCounters(all: Case): Finding[] {
  const { uses, entitled, useOf, entitlementOf, isDisturbed, paymentOf } = all
  const findings: Finding[] = []
  const rowsOf = Map.groupBy(entitled.uses, ({ entitlement_id }) => entitlement_id)
  for (const row of entitled.entitlements) {
    const { id, kind } = row
    const own =
      kind === 'day' ? entitled.uses.filter(({ day_id }) => day_id === id) : (rowsOf.get(id) ?? [])
    const delivered = own.filter(({ state }) => state === 'delivered').length
    const running = own.filter(({ state }) => state === 'running').length
    if (running > 0) findings.push(finding('stuck', `${running} uses have not ended`, row))
    if (row.uses !== delivered)
      findings.push(finding('mismatch', `${delivered} of its uses were delivered`, row, ...own))
    if (row.uses > row.uses_max || row.attempts < own.length)
      findings.push(
        finding('mismatch', `its counters are impossible, with ${own.length} uses`, row),
      )
  }
  const answered = uses.filter(({ nonce, result }) => nonce && result.kind === 'answered')
  for (const [nonce, same] of Map.groupBy(answered, (each) => each.nonce))
    if (same.length > 1) findings.push(finding('double', `${nonce} was answered twice`, ...same))
  for (const { id, entitlement_id } of useOf.values())
    if (!entitlementOf.has(entitlement_id))
      findings.push(finding('mismatch', `the use ${id} is of no entitlement`))
  // Answers of tokens have no nonce, so they are compared as numbers.
  for (const [sale, own] of Map.groupBy(uses, (each) => each.sale)) {
    if (sale === undefined) continue
    const sure = own.filter(
      ({ nonce, result, sentAt, endedAt = sentAt }) =>
        nonce === undefined &&
        result.kind === 'answered' &&
        result.entitlement !== '' &&
        !isDisturbed(sentAt, endedAt + recordMs),
    ).length
    const counted = (rowsOf.get(`again|${paymentOf(sale)?.id}`) ?? []).filter(
      ({ id, state }) => id.startsWith('use_') && state === 'delivered',
    ).length
    if (sure > counted)
      findings.push(finding('unpaid', `${sure} answers of its token, ${counted} are counted`, sale))
  }
  return findings
}

/** The upstream works once for each attempt that is counted. */
function auditCalls(all: Case): Finding[] {
  const attempts = new Map<string, number>()
  const add = (serial: string, count: number) =>
    attempts.set(serial, (attempts.get(serial) ?? 0) + count)
  for (const sale of all.sales) {
    const row = all.paymentOf(sale)
    if (row === undefined) continue
    const own = all.entitled.uses.filter(
      ({ entitlement_id }) => entitlement_id === `again|${row.id}`,
    )
    add(sale.serial, row.attempts + own.length)
  }
  for (const { serial, sale, nonce } of all.uses)
    if (sale === undefined && nonce !== undefined && all.useOf.has(nonce)) add(serial, 1)
  return [...Map.groupBy(all.calls, ({ serial }) => serial)].flatMap(([serial, made]) => {
    const counted = attempts.get(serial) ?? 0
    if (made.length <= counted) return []
    return [finding('unpaid', `${made.length} calls for ${counted} attempts of ${serial}`, ...made)]
  })
}

function auditRefunds({ sales, repaid, refundOf, payments, calls, entitled, paymentOf }: Case) {
  const findings: Finding[] = []
  const byId = new Map(payments.map((row) => [row.id, row]))
  const owed = new Map([...refundOf.keys()].map((id) => [nonceOf(id), id]))
  for (const [nonce, moved] of Map.groupBy(repaid, (each) => each.nonce)) {
    const row = refundOf.get(owed.get(nonce) ?? '')
    if (moved.length > 1) findings.push(finding('double', 'a payment was refunded twice', ...moved))
    if (row === undefined) findings.push(finding('mismatch', 'a refund of no payment', ...moved))
  }
  const byNonce = new Map(repaid.map((each) => [each.nonce, each]))
  for (const row of refundOf.values()) {
    const payment = byId.get(row.payment_id)
    const moved = byNonce.get(nonceOf(row.payment_id))
    if (row.paid_hash === null || moved === undefined) {
      findings.push(finding('stuck', 'a refund was not paid', row, moved))
      continue
    }
    const isRight =
      payment !== undefined &&
      moved.transaction === row.paid_hash &&
      moved.network === payment.network &&
      moved.to === payment.payer.toLowerCase() &&
      moved.amountAtomic === BigInt(row.amount_atomic) &&
      BigInt(row.amount_atomic) <= BigInt(payment.amount_atomic)
    if (!isRight) findings.push(finding('mismatch', 'a wrong refund', row, moved, payment))
    if (row.reason === 'undelivered' && payment?.delivery === 'delivered')
      findings.push(finding('unpaid', 'a delivered payment was refunded by itself', row, payment))
    // The command reads its clock before its commit, which waits for those of the service.
    const late = entitled.uses.filter(
      ({ entitlement_id, created_at }) =>
        entitlement_id.endsWith(`|${row.payment_id}`) && created_at > row.created_at + recordMs,
    )
    if (late.length > 0) findings.push(finding('unpaid', 'used after the refund', row, ...late))
    const serial = sales.find((sale) => paymentOf(sale)?.id === row.payment_id)?.serial
    const asked = calls.filter(
      (call) => call.serial === serial && call.at > row.created_at + recordMs,
    )
    if (asked.length > 0)
      findings.push(finding('unpaid', 'delivered after the refund', row, ...asked))
  }
  return findings
}

async function auditBalances({ setup, sales, paid, repaid }: Case): Promise<Finding[]> {
  const findings: Finding[] = []
  const sum = (amounts: readonly bigint[]) => amounts.reduce((all, each) => all + each, 0n)
  for (const site of setup.sites) {
    const back = repaid.filter(({ network }) => network === site.id)
    const left = await tokensOf(site, refunder.address)
    if (left !== refunderAtomic - sum(back.map(({ amountAtomic }) => amountAtomic)))
      findings.push(finding('mismatch', `the account of refunds has ${left} on ${site.id}`))
    for (const wallet of setup.returning) {
      const { address } = wallet.account
      const spent = sales.filter(
        (sale) => sale.wallet === wallet && sale.site === site && paid.has(sale.serial),
      )
      const returned = back.filter(({ to }) => to === address.toLowerCase())
      const due =
        mintedAtomic -
        sum(spent.map(({ amountAtomic }) => amountAtomic)) +
        sum(returned.map(({ amountAtomic }) => amountAtomic))
      const has = await tokensOf(site, address)
      if (has !== due)
        findings.push(finding('double', `${address} has ${has} on ${site.id}, and ${due} is due`))
    }
  }
  return findings
}

/** What the account of refunds has paid, as the chains say. */
async function readRepaid({ sites }: Setup): Promise<Repaid[]> {
  const from = `0x${refunder.address.slice(2).toLowerCase().padStart(64, '0')}`
  const all = await Promise.all(
    sites.map(async ({ id, network, chain }) => {
      const { address } = network.asset
      const read = (topics: readonly string[]) =>
        logsOf(chain, { address, topics, fromBlock: '0x0', toBlock: 'latest' })
      const used = new Map(
        (await read([usedTopic, from])).map((log) => [log.transactionHash, log.topics[2]]),
      )
      return (await read([transferTopic, from])).map(
        (log): Repaid => ({
          nonce: used.get(log.transactionHash) ?? '0x',
          to: `0x${log.topics[2]?.slice(26)}`.toLowerCase(),
          amountAtomic: BigInt(log.data),
          transaction: log.transactionHash,
          network: id,
        }),
      )
    }),
  )
  return all.flat()
}

const nonceOf = (paymentId: string) => keccak256(stringToBytes(`turnpike refund ${paymentId}`))

const walletOf = ({ wallet }: { wallet: Use['wallet'] }) => wallet.account.address.toLowerCase()

function moneyOf(network: string, payer: string, nonce: string): string {
  return `${network} ${payer} ${nonce}`.toLowerCase()
}

function printed(value: unknown): string {
  return (
    JSON.stringify(value, (key, each) => {
      if (key === 'site') return (each as Sale['site']).id
      if (key === 'wallet' && typeof each === 'object') return each.account?.address
      if (key === 'sale') return (each as Sale | undefined)?.serial
      return typeof each === 'bigint' ? String(each) : each
    }) ?? 'none'
  )
}
