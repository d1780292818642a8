import { decodeFunctionResult, encodeFunctionData, type Hex, recoverTypedDataAddress } from 'viem'
import { topics as eventTopics } from '../../src/protocol/Channel'
import { channelAbi, channelTypedData, settlementAddress } from '../harness/channel-contract'
import type { Audit } from './audit'
import { type Life, readChannel, type Sent, sendAs } from './channels'
import type { Finding, Kind } from './finding'
import { logsOf } from './ledger'
import type { ChannelRow, PaymentRow, Store } from './rows'
import { mintedAtomic, type Setup, type Site, tokensOf } from './setup'
import type { Call } from './upstream'
import { possibleCharges } from './upto-audit'

/**
 * Compares what buyers with channels signed and got with the ledger, the contract and the upstream: what
 * was charged, claimed, swept, refunded and withdrawn.
 */

export type ChannelEvidence = {
  setup: Setup
  lives: readonly Life[]
  /** Those of these buyers. */
  calls: readonly Call[]
  store: Pick<Store, 'channels'>
  /** Whether the program was killed or disturbed between these times, unix ms. */
  isDisturbed: (from: number, until: number) => boolean
  /** Whether a balancer has left a gateway that may still answer a request, by its serial. */
  hasLeft?: ((serial: string) => boolean) | undefined
}

type Case = ChannelEvidence & {
  rowOf: ReadonlyMap<Hex, ChannelRow>
  /** By channel, in the order of their bases. */
  paidBy: ReadonlyMap<string, readonly PaymentRow[]>
  callsOf: ReadonlyMap<string, readonly Call[]>
  chain: ReadonlyMap<Hex, OnChain>
}

/** What the contract has of a channel, and the sums of its events. */
type OnChain = {
  balanceAtomic: bigint
  claimedAtomic: bigint
  depositedAtomic: bigint
  claimsAtomic: bigint
  refundedAtomic: bigint
  withdrawnAtomic: bigint
}

/** The end of an answer is recorded within this time after its last byte was written, ms. */
const recordMs = 1_000
/** A crash may be noticed by the upstream so much later than its last byte was sent, ms. */
const crashSlackMs = 2_000

const finding = (kind: Kind, what: string, ...of: readonly unknown[]): Finding => ({
  kind,
  text: [what, ...of.map((each) => `  ${printed(each)}`)].join('\n'),
})

/**
 * What must hold at any time, also between a kill and the next start: charged is the sum of the payments,
 * which follow each other without a gap, a voucher covers it, and no claim is above it.
 */
export async function auditLedger(
  { lives, store }: Pick<ChannelEvidence, 'lives' | 'store'>,
  /** Rows that were checked before; those of this time are added. */
  seen = new Set<string>(),
): Promise<Finding[]> {
  const { channels, payments } = await store.channels()
  const paidBy = sorted(payments)
  const findings: Finding[] = []
  for (const row of channels) {
    if (seen.has(printed(row))) continue
    seen.add(printed(row))
    const add = (kind: Kind, what: string, ...of: readonly unknown[]) =>
      void findings.push(finding(kind, what, row, ...of))
    const [charged, claimed] = [BigInt(row.charged_atomic), BigInt(row.claimed_atomic)]
    let base = 0n
    for (const payment of paidBy.get(row.id) ?? []) {
      if (baseOf(payment) !== base) add('double', `a payment does not begin at ${base}`, payment)
      if (payment.state !== 'confirmed') add('mismatch', 'a payment is not confirmed', payment)
      base = baseOf(payment) + BigInt(payment.amount_atomic)
    }
    if (base !== charged) add('mismatch', `its payments end at ${base}`)
    const life = lives.find(({ id }) => id === row.id)
    if (life === undefined) {
      add('mismatch', 'a channel of no buyer')
      continue
    }
    const onChain = await readChannel(life.site, row.id)
    if (onChain.claimedAtomic > charged)
      add('double', `${onChain.claimedAtomic} was claimed on the chain`)
    if (claimed > charged) add('mismatch', 'more is claimed than charged')
    if (charged > claimed && !(await isCovered(life, row)))
      add('lost', 'no voucher covers what was charged')
  }
  return findings
}

/** Whether the stored voucher is signed by the payer and covers what was charged. */
async function isCovered(life: Life, row: ChannelRow): Promise<boolean> {
  const { signature, signed_atomic, charged_atomic, id } = row
  if (signature === null || signed_atomic === null) return false
  const message = { channelId: id, maxClaimableAmount: BigInt(signed_atomic) }
  const typed = channelTypedData(life.site.network.chainId, 'Voucher', message)
  const signer = await recoverTypedDataAddress({ ...typed, signature })
  return BigInt(signed_atomic) >= BigInt(charged_atomic) && signer === life.wallet.account.address
}

/** What the chain does not have yet, after a start, which claims all: undefined when nothing is missing. */
export async function unswept({
  setup,
  lives,
  store,
}: Pick<ChannelEvidence, 'setup' | 'lives' | 'store'>): Promise<string | undefined> {
  for (const site of setup.sites) {
    const { totalClaimed, totalSettled } = await readIncome(site, setup.payee)
    if (totalClaimed !== totalSettled)
      return `${totalClaimed - totalSettled} of ${site.id} are claimed and not swept`
  }
  const chain = await readContract(setup, lives, false)
  const { channels } = await store.channels()
  for (const row of channels) {
    const onChain = chain.get(row.id)
    const isRead =
      onChain?.claimedAtomic === BigInt(row.claimed_atomic) &&
      onChain.balanceAtomic === BigInt(row.balance_atomic)
    if (!isRead) return `the chain has ${printed(onChain)}, and the ledger ${printed(row)}`
    const [charged, balance] = [BigInt(row.charged_atomic), onChain.balanceAtomic]
    // A reorganisation may take a deposit; before a withdrawal ends all must be claimed.
    const claimable = row.withdraw_at === null && balance < charged ? balance : charged
    if (onChain.claimedAtomic < claimable) return `not all is claimed: ${printed(row)}`
  }
  return undefined
}

/** What sweeps have moved to the payee, by network, atomic. */
export async function sweptBy({ sites, payee }: Setup): Promise<Map<string, bigint>> {
  const swept = new Map<string, bigint>()
  for (const site of sites) swept.set(site.id, (await readIncome(site, payee)).totalSettled)
  return swept
}

/** The program must have ended. Ends the withdrawals of the buyers, after their delay. */
export async function auditChannels(evidence: ChannelEvidence): Promise<Finding[]> {
  const { setup, lives, calls, store } = evidence
  const findings = await auditLedger(evidence)
  await endWithdrawals(setup, lives)
  const { channels, payments } = await store.channels()
  const all: Case = {
    ...evidence,
    rowOf: new Map(channels.map((row) => [row.id, row])),
    paidBy: sorted(payments),
    callsOf: Map.groupBy(calls, ({ serial }) => serial),
    chain: await readContract(setup, lives, true),
  }
  return [
    ...findings,
    ...lives.flatMap((life) => auditLife(all, life)),
    ...auditCalls(all),
    ...(await auditMoney(all)),
  ]
}

function auditLife(all: Case, life: Life): Finding[] {
  const { id, faults, withdrawal, requests } = life
  const row = id && all.rowOf.get(id)
  const findings = faults.map((text) => finding('mismatch', text, life.serial, row))
  const add = (kind: Kind, what: string, ...of: readonly unknown[]) =>
    void findings.push(finding(kind, what, row, ...of))
  const paid = (id && all.paidBy.get(id)) ?? []
  const byId = new Map(paid.map((payment) => [payment.id, payment]))
  const owner = new Map<string, Sent>()
  for (const request of requests)
    for (const { paymentId } of all.callsOf.get(request.serial) ?? [])
      if (byId.has(paymentId)) owner.set(paymentId, request)
  for (const payment of paid)
    if (!owner.has(payment.id)) add('lost', 'charged without an answer', payment)
  for (const request of requests) {
    const own = paid.filter((payment) => owner.get(payment.id) === request)
    findings.push(...auditRequest(all, request, own))
  }
  if (row && row.reserved_id !== null) add('stuck', 'a voucher is still reserved')
  const onChain = id && all.chain.get(id)
  if (row && onChain && withdrawal && onChain.claimedAtomic !== BigInt(row.charged_atomic))
    add('lost', 'a payer has withdrawn what was charged', onChain, withdrawal)
  return findings
}

function auditRequest(all: Case, request: Sent, own: readonly PaymentRow[]): Finding[] {
  const { result, said, paymentId, isStream, priceAtomic, toldAtomic, sentAt, endedAt } = request
  const calls = all.callsOf.get(request.serial) ?? []
  const findings: Finding[] = []
  const add = (kind: Kind, what: string) =>
    void findings.push(finding(kind, what, request, ...own, ...calls))
  const isCut = all.isDisturbed(sentAt, (endedAt ?? Date.now()) + recordMs)
  const hasLeft = all.hasLeft?.(request.serial) ?? false
  // Of a stream that its buyer has left a part was delivered.
  if (own.length > 1 && !(isStream && hasLeft))
    add('double', 'a request was charged more than once')
  const payment = own.find(({ id }) => id === paymentId) ?? own[0]
  for (const each of own) {
    const possible = chargesOf(calls, each.id, { priceAtomic, hasLeft })
    if (!possible.includes(BigInt(each.amount_atomic)))
      add('mismatch', `charged ${each.amount_atomic}, and it cost ${possible.join(' or ')}`)
    const made = calls.filter((call) => call.paymentId === each.id).length
    // What was charged after its buyer had left is no attempt.
    const most = hasLeft ? each.attempts + 1 : Math.max(1, each.attempts)
    if (made > most) add('double', `${made} calls, ${each.attempts} attempts`)
  }
  switch (result) {
    case 'answered': {
      const isFree = chargesOf(calls, paymentId ?? '', { priceAtomic, hasLeft }).includes(0n)
      if (payment === undefined) {
        if (!isFree && !(isStream && isCut)) add('unpaid', 'an answer that was not charged')
      } else if (payment.id !== paymentId) add('double', 'answered and charged for another try')
      else if (toldAtomic !== undefined && toldAtomic !== BigInt(payment.amount_atomic))
        add('mismatch', `charged ${payment.amount_atomic}, and told ${toldAtomic}`)
      break
    }
    case 'refused':
      if (payment !== undefined && said.at(-1)?.code !== 'redeem-exhausted')
        add('lost', 'charged, and the buyer was refused')
      else add('refused', 'a valid voucher was refused')
      break
    case 'passed':
      // What is undelivered can be had by the voucher, or by a token.
      if (payment?.delivery === 'delivered' && !(isStream && isCut))
        add('lost', 'charged and delivered, and the buyer has nothing')
      break
    case 'open':
      if (request.vouchers.length > 0) add('stuck', 'neither answered nor refused')
  }
  return findings
}

/** What the answers that were made for a payment may cost. */
function chargesOf(
  calls: readonly Call[],
  id: string,
  { priceAtomic, hasLeft }: { priceAtomic: bigint; hasLeft: boolean },
): readonly bigint[] {
  const own = calls.filter(({ paymentId }) => paymentId === id)
  return own.flatMap((call) => {
    if (call.model)
      return possibleCharges([call], { amountAtomic: priceAtomic, byUse: { hasLeft } })
    return call.end === 'complete' ? [priceAtomic] : [0n]
  })
}

/** Work of the upstream that nobody was charged for was ended by a kill. */
function auditCalls(all: Case): Finding[] {
  return freeCalls(all)
    .filter(({ at, endedAt = at }) => !all.isDisturbed(at - crashSlackMs, endedAt + crashSlackMs))
    .map((call) => finding('unpaid', 'an answer was made and not charged', call))
}

/** Whole answers of the upstream that nobody was charged for. */
function freeCalls({ calls, paidBy }: Pick<Case, 'calls' | 'paidBy'>): readonly Call[] {
  const charged = new Set([...paidBy.values()].flat().map(({ id }) => id))
  return calls.filter(
    ({ end, paymentId, model }) =>
      end === 'complete' && !charged.has(paymentId) && model?.reported !== 'error',
  )
}

/** Deposits are balances, refunds and withdrawals; claims are sweeps; wallets and contract agree. */
async function auditMoney(all: Case): Promise<Finding[]> {
  const { setup, lives, chain, rowOf } = all
  const findings: Finding[] = []
  const add = (kind: Kind, what: string, ...of: readonly unknown[]) =>
    void findings.push(finding(kind, what, ...of))
  for (const life of lives) {
    const onChain = life.id && chain.get(life.id)
    if (!onChain) continue
    const { balanceAtomic, depositedAtomic, refundedAtomic, withdrawnAtomic } = onChain
    if (depositedAtomic !== balanceAtomic + refundedAtomic + withdrawnAtomic)
      add('mismatch', 'deposits are not balance, refunds and withdrawals', onChain, life.serial)
    if (onChain.claimedAtomic !== onChain.claimsAtomic)
      add('mismatch', 'claimed is not the sum of the claims', onChain, life.serial)
    const signed = life.deposits.reduce((sum, { amountAtomic }) => sum + amountAtomic, 0n)
    if (depositedAtomic > signed) add('double', `deposited, and ${signed} was signed`, onChain)
    const row = life.id && rowOf.get(life.id)
    if (depositedAtomic > 0n && !row) add('lost', 'a deposit of no channel', onChain, life.serial)
    if (row && BigInt(row.claimed_atomic) !== onChain.claimedAtomic)
      add('mismatch', `the chain has claimed ${onChain.claimedAtomic}`, row)
  }
  for (const site of setup.sites) {
    const own = lives.filter((life) => life.site === site)
    const sum = (of: (onChain: OnChain) => bigint) =>
      own.reduce((total, { id }) => {
        const onChain = id && chain.get(id)
        return onChain ? total + of(onChain) : total
      }, 0n)
    const { totalClaimed, totalSettled } = await readIncome(site, setup.payee)
    const claimed = sum(({ claimedAtomic }) => claimedAtomic)
    if (totalClaimed !== claimed) add('mismatch', `claimed ${claimed} and ${totalClaimed}`, site.id)
    if (totalSettled !== totalClaimed)
      add('stuck', `swept ${totalSettled} of ${totalClaimed}`, site.id)
    const held = await tokensOf(site, settlementAddress)
    const due = sum(({ balanceAtomic }) => balanceAtomic) - totalSettled
    if (held !== due) add('mismatch', `the contract has ${held}, its channels ${due}`, site.id)
    for (const wallet of new Set(own.map((life) => life.wallet))) {
      const theirs = own.filter((life) => life.wallet === wallet)
      const spent = theirs.reduce((total, { id }) => {
        const onChain = id && chain.get(id)
        return onChain ? total + onChain.balanceAtomic : total
      }, 0n)
      const has = await tokensOf(site, wallet.account.address)
      if (has !== mintedAtomic - spent)
        add('double', `${wallet.account.address} has ${has}, and ${mintedAtomic - spent} is due`)
    }
  }
  return findings
}

/** The figures of the report. */
export async function channelFigures(evidence: ChannelEvidence): Promise<Audit['figures']> {
  const { lives, store, setup, calls, isDisturbed } = evidence
  const { channels, payments } = await store.channels()
  const chain = await readContract(setup, lives, true)
  const requests = lives.flatMap((life) => life.requests)
  const total = (of: (onChain: OnChain) => bigint) =>
    String([...chain.values()].reduce((sum, each) => sum + of(each), 0n))
  const answered = new Set(requests.flatMap(({ paymentId }) => paymentId ?? []))
  const owed = payments.filter(({ id }) => !answered.has(id))
  const sum = (rows: readonly PaymentRow[]) =>
    String(rows.reduce((all, row) => all + BigInt(row.amount_atomic), 0n))
  const charged = channels.reduce((all, row) => all + BigInt(row.charged_atomic), 0n)
  const results = Map.groupBy(requests, ({ result }) => `channel requests: ${result}`)
  const ends = Map.groupBy(lives, ({ end }) => `channels: ${end}`)
  const said = Map.groupBy(
    requests.flatMap((request) => request.said),
    ({ status, code, reason }) =>
      `channel answers ${status} ${status === 200 ? '' : reason || code}`.trim(),
  )
  const free = freeCalls({ calls, paidBy: sorted(payments) })
  const killed = free.filter(({ at, endedAt = at }) => isDisturbed(at, endedAt + crashSlackMs))
  const counts = [...ends, ...results, ...said].map(([name, list]) => [name, list.length] as const)
  return [
    ...counts.toSorted(([one], [other]) => one.localeCompare(other)),
    ['channel corrections', lives.reduce((all, { corrections }) => all + corrections, 0)],
    ['channel deposits, atomic', total(({ depositedAtomic }) => depositedAtomic)],
    ['  charged', String(charged)],
    ['  charged, of answers that buyers have', sum(payments.filter(({ id }) => answered.has(id)))],
    ['  charged, of answers that are owed', sum(owed)],
    ['  claimed and swept', total(({ claimedAtomic }) => claimedAtomic)],
    ['  refunded', total(({ refundedAtomic }) => refundedAtomic)],
    ['  withdrawn', total(({ withdrawnAtomic }) => withdrawnAtomic)],
    ['answers of the upstream that a kill left uncharged', killed.length],
  ]
}

/** Ends each withdrawal that was started, when its delay is over. */
async function endWithdrawals({ sites }: Setup, lives: readonly Life[]): Promise<void> {
  const started = lives.filter(({ withdrawal }) => withdrawal !== undefined)
  const delay = Math.max(0, ...started.map(({ config }) => config?.withdrawDelay ?? 0))
  if (delay === 0) return
  for (const { chain } of sites) await chain.rpc('evm_increaseTime', [delay])
  for (const { site, wallet, config } of started)
    await sendAs(site, wallet, 'finalizeWithdraw', [config])
}

const eventsOf: Readonly<Record<string, keyof OnChain>> = {
  [eventTopics.deposited]: 'depositedAtomic',
  [eventTopics.claimed]: 'claimsAtomic',
  [eventTopics.refunded]: 'refundedAtomic',
  [eventTopics.withdrawFinalized]: 'withdrawnAtomic',
}

async function readContract(
  { sites }: Setup,
  lives: readonly Life[],
  hasEvents: boolean,
): Promise<Map<Hex, OnChain>> {
  const all = new Map<Hex, OnChain>()
  for (const { id, site } of lives)
    if (id !== undefined && !all.has(id)) {
      const sums = { depositedAtomic: 0n, claimsAtomic: 0n }
      const back = { refundedAtomic: 0n, withdrawnAtomic: 0n }
      all.set(id, { ...(await readChannel(site, id)), ...sums, ...back })
    }
  if (!hasEvents) return all
  for (const { chain } of sites) {
    const filter = { address: settlementAddress, fromBlock: '0x0', toBlock: 'latest' }
    for (const { topics, data } of await logsOf(chain, filter)) {
      const name = eventsOf[topics[0] ?? '']
      const onChain = all.get(topics[1] ?? '0x')
      // The first word of each is its own amount.
      if (name && onChain) onChain[name] += BigInt(data.slice(0, 66))
    }
  }
  return all
}

async function readIncome({ chain, network }: Site, payee: Hex) {
  const functionName = 'receivers'
  const args = [payee, network.asset.address] as const
  const data = encodeFunctionData({ abi: channelAbi, functionName, args })
  const words = (await chain.rpc('eth_call', [{ to: settlementAddress, data }, 'latest'])) as Hex
  const [totalClaimed, totalSettled] = decodeFunctionResult({
    ...{ abi: channelAbi, functionName, data: words },
  }) as [bigint, bigint]
  return { totalClaimed, totalSettled }
}

function sorted(payments: readonly PaymentRow[]): Map<string, PaymentRow[]> {
  const groups = Map.groupBy(payments, ({ transaction_hash }) => transaction_hash)
  for (const rows of groups.values())
    rows.sort((one, other) => (baseOf(one) < baseOf(other) ? -1 : 1))
  return groups
}

/** What was charged before a payment: the lower half of its nonce. */
function baseOf({ nonce }: PaymentRow): bigint {
  return BigInt(`0x${nonce.slice(34)}`)
}

function printed(value: unknown): string {
  return (
    JSON.stringify(value, (_, each) => (typeof each === 'bigint' ? String(each) : each)) ?? 'none'
  )
}
