import { encodeFunctionData, type Hex, recoverTypedDataAddress } from 'viem'
import { ask, type Required, settlementOf } from '../harness/buyer'
import {
  type ChannelTerms,
  chainIdOf,
  channelFor,
  channelOffer,
  payChannel,
} from '../harness/channel'
import {
  type ChannelConfig,
  channelAbi,
  channelIdOf,
  channelTypedData,
  settlementAddress,
} from '../harness/channel-contract'
import { prices } from './configuration'
import { nap } from './payers'
import type { Random } from './random'
import type { Setup, Site } from './setup'
import { membersOf } from './upto-payers'

/**
 * Buyers with payment channels. Each keeps what its client would keep: what was charged, and the balance
 * that it deposited. It presents the same voucher again after a lost answer, corrects itself by a 402,
 * and deposits more; at the end it asks for a refund, starts a withdrawal of its own, or leaves.
 */

/** A channel and all that its buyer did with it. Times are unix ms. */
export type Life = {
  serial: `c${string}`
  wallet: Setup['channels'][number]
  site: Site
  kind: 'item' | 'model'
  /** Known once the service has offered its terms. */
  config: ChannelConfig | undefined
  id: Hex | undefined
  /** As its client takes it. */
  chargedAtomic: bigint
  balanceAtomic: bigint
  /** Signed deposits. */
  deposits: { amountAtomic: bigint; salt: Hex }[]
  requests: Sent[]
  corrections: number
  /** What the service answered to requests for a refund. */
  refunds: Said[]
  withdrawal: { at: number; amountAtomic: bigint } | undefined
  end: 'open' | 'refunded' | 'withdrew' | 'left'
  /** What the client cannot accept. */
  faults: string[]
}

/** A request of a buyer. */
export type Sent = {
  serial: string
  isStream: boolean
  sentAt: number
  endedAt: number | undefined
  /** The most that it may cost. */
  priceAtomic: bigint
  /** What its vouchers are of, the oldest first. */
  vouchers: { baseAtomic: bigint; unanswered: number }[]
  said: Said[]
  /** `passed`: it may have been charged, and the buyer goes on without its answer. */
  result: 'open' | 'answered' | 'passed' | 'refused'
  paymentId: string | undefined
  /** What the head of its answer says that it cost. */
  toldAtomic: bigint | undefined
}

type Said = { at: number; status: number; code: string; reason: string }

export type ChannelBuyers = {
  lives: readonly Life[]
  start(): void
  /** Starts nothing new; resolves when all have ended, or after the time limit. */
  finish(limitMs: number): Promise<void>
}

type Options = { setup: Setup; url: string; random: Random; pauseMaxMs: number }

const buyers = 6
const answerMaxMs = 90_000
const correctable = new Set([
  'invalid_batch_settlement_evm_cumulative_amount_mismatch',
  'invalid_batch_settlement_evm_cumulative_below_claimed',
])

export function createChannelBuyers({ setup, url, random, pauseMaxMs }: Options): ChannelBuyers {
  const lives: Life[] = []
  const ending = new AbortController()
  const giveUp = new AbortController()
  const loops: Promise<void>[] = []
  let opened = 0

  /** The wallets come again when all have had a channel, each time with another salt. */
  function open(kind: Life['kind']): Life {
    const serial = `c${opened}` as const
    const wallet = setup.channels[opened++ % setup.channels.length]
    const site = setup.sites[wallet ? wallet.index % setup.sites.length : 0]
    if (wallet === undefined || site === undefined) throw new Error('no wallet for a channel')
    const life: Life = {
      ...{ serial, wallet, site, kind, config: undefined, id: undefined },
      ...{ chargedAtomic: 0n, balanceAtomic: 0n, deposits: [], requests: [], corrections: 0 },
      ...{ refunds: [], withdrawal: undefined, end: 'open', faults: [] },
    }
    lives.push(life)
    return life
  }

  async function live(kind: Life['kind'], own: Random): Promise<void> {
    while (!ending.signal.aborted) {
      const life = open(kind)
      const salt = own.bytes32()
      const count = own.between(5, 40)
      const end = own.next()
      for (let n = 0; n < count && !ending.signal.aborted && life.end === 'open'; n++) {
        await nap(own.between(0, pauseMaxMs), ending.signal)
        // Two at once: a channel has one request at a time.
        const size = kind === 'item' && own.chance(0.06) ? 2 : 1
        const sent = Array.from({ length: size }, (_, index) => {
          const serial = `${life.serial}-${life.requests.length + index}`
          return plan(life, serial, own)
        })
        life.requests.push(...sent.map(({ request }) => request))
        await Promise.all(sent.map((each) => buy(life, { ...each, salt }, own)))
        if (end < 0.2 && n === count >> 1) await withdraw(life)
      }
      if (life.end !== 'open' || life.id === undefined) continue
      if (end < 0.7 && life.withdrawal === undefined) await refund(life, own)
      else life.end = life.withdrawal ? 'withdrew' : 'left'
    }
  }

  type Planned = { request: Sent; target: string; init: RequestInit }

  function plan(life: Life, serial: string, own: Random): Planned {
    const key: Record<string, string> = own.chance(0.2)
      ? { 'idempotency-key': `key-${serial}` }
      : {}
    const request: Sent = {
      ...{ serial, isStream: false, sentAt: Date.now(), endedAt: undefined, priceAtomic: 0n },
      ...{ vouchers: [], said: [], result: 'open', paymentId: undefined, toldAtomic: undefined },
    }
    if (life.kind === 'item') {
      const [path] = own.pick(Object.entries(prices))
      const target = `${url}/m/shop${path}?n=${serial}`
      return { request, target, init: { headers: key } }
    }
    request.isStream = own.chance(0.5)
    const body = JSON.stringify({
      ...{ model: 'm', max_tokens: own.pick([500, 1_000, 2_000]) },
      ...(request.isStream && { stream: true }),
      messages: [{ role: 'user', content: serial }],
    })
    const headers = { 'content-type': 'application/json', ...key }
    const target = `${url}/m/model/chat?n=${serial}`
    return { request, target, init: { method: 'POST', body, headers } }
  }

  /** Presents one voucher until there is an answer, or a correction by which it signs another. */
  async function buy(
    life: Life,
    { request, target, init, salt }: Planned & { salt: Hex },
    own: Random,
  ): Promise<void> {
    let signed: Signed | undefined
    while (request.result === 'open' && !giveUp.signal.aborted && life.end === 'open') {
      signed ??= await sign(life, { request, target, init, salt }, own)
      const isDone = signed && (await show(life, request, { target, init, signed }))
      if (isDone) signed = undefined
      // As a client that has given up this request, and pays for the next one by the same voucher.
      const isLost = request.said.at(-1)?.status === 0
      if (request.result === 'open' && isLost && own.chance(0.05)) request.result = 'passed'
      if (request.result === 'open') await nap(own.between(20, 250), giveUp.signal)
    }
    if (request.result === 'open' && life.end !== 'open') request.result = 'passed'
    request.endedAt = Date.now()
  }

  return {
    lives,
    start() {
      for (let index = 0; index < buyers; index++)
        loops.push(live(index % 3 === 2 ? 'model' : 'item', random.fork(`channel ${index}`)))
    },
    async finish(limitMs) {
      ending.abort()
      const timer = setTimeout(() => giveUp.abort(), limitMs)
      await Promise.all(loops)
      clearTimeout(timer)
    },
  }

  async function refund(life: Life, own: Random): Promise<void> {
    const target = `${url}/m/${life.kind === 'item' ? 'shop/item' : 'model/chat'}?n=${life.serial}-r`
    const part = own.chance(0.3) ? BigInt(own.between(1_000, 30_000)) : undefined
    let header: string | undefined
    while (life.end === 'open' && !giveUp.signal.aborted) {
      // The stock client always sends GET.
      header ??= await signTerms(
        life,
        target,
        {},
        { kind: 'refund', ...(part && { amount: part }) },
      )
      const answer = header && (await fetchAnswer(target, { headers: paying(header) }))
      if (answer) {
        life.refunds.push(saidBy(answer))
        const { reason } = saidBy(answer)
        // Nothing is left, or less than the buyer takes as its balance.
        const isEmpty = /_refund_(no_balance|amount_invalid)$/.test(reason)
        if (answer.status === 200 || isEmpty) life.end = 'refunded'
        else if (await correct(life, answer)) header = undefined
        else if (!isTransient(answer)) {
          life.faults.push(`a refund was refused: ${JSON.stringify(answer.body)}`)
          life.end = 'left'
        }
      }
      if (life.end === 'open') await nap(own.between(20, 250), giveUp.signal)
    }
  }
}

type Signed = { headers: Record<string, string>; baseAtomic: bigint; depositAtomic: bigint }

/** The next voucher, with a deposit where the balance is too small. Undefined while none is offered. */
async function sign(
  life: Life,
  { request, target, init, salt }: { request: Sent; target: string; init: RequestInit; salt: Hex },
  own: Random,
): Promise<Signed | undefined> {
  const required = await offersOf(target, init)
  const offer = required && channelOffer(required, life.site.id)
  if (required === undefined || offer === undefined) return undefined
  life.config ??= channelFor(offer, life.wallet.account.address, { salt })
  life.id ??= channelIdOf(life.config, chainIdOf(offer))
  request.priceAtomic = BigInt(offer.amount)
  const base = life.chargedAtomic
  const terms: ChannelTerms = { network: life.site.id, base, config: life.config }
  const missing = base + request.priceAtomic - life.balanceAtomic
  let depositAtomic = 0n
  if (missing > 0n) {
    const least = BigInt(offer.extra.minDeposit ?? 0)
    const wanted = request.priceAtomic * BigInt(own.between(2, 8))
    depositAtomic = [least, wanted, missing].reduce((most, each) => (each > most ? each : most))
    const depositSalt = own.bytes32()
    life.deposits.push({ amountAtomic: depositAtomic, salt: depositSalt })
    Object.assign(terms, { kind: 'deposit', amount: depositAtomic, depositSalt })
  }
  const header = await payChannel(required, life.wallet.account, terms)
  request.vouchers.push({ baseAtomic: base, unanswered: 0 })
  return { headers: paying(header), baseAtomic: base, depositAtomic }
}

/** Sends what was signed. Resolves with true when it must not come again. */
async function show(
  life: Life,
  request: Sent,
  { target, init, signed }: { target: string; init: RequestInit; signed: Signed },
): Promise<boolean> {
  const voucher = request.vouchers.at(-1)
  const headers = { ...(init.headers as Record<string, string>), ...signed.headers }
  const answer = await fetchAnswer(target, { ...init, headers })
  request.said.push(saidBy(answer))
  const { status, body } = answer
  if (status === 200 && body.serial === request.serial) {
    Object.assign(request, { result: 'answered', paymentId: String(body.paymentId) })
    accept(life, request, answer, signed)
    return true
  }
  const isUnknown = status === 0 || (status === 502 && body.code === undefined)
  if (isUnknown && voucher) voucher.unanswered++
  const token = tokenOf(body)
  if (token !== undefined) {
    signed.headers = { 'payment-redeem': token }
    return false
  }
  if (await correct(life, answer)) {
    // One that may have been charged is not bought again.
    if (voucher && voucher.unanswered > 0) request.result = 'passed'
    return true
  }
  if (isUnknown || isTransient(answer)) return false
  if (voucher && saidBy(answer).reason.endsWith('_cumulative_exceeds_balance')) {
    // What it takes as its balance can be above the real one, when it had two requests at once.
    if (await isAbove(life, voucher.baseAtomic + request.priceAtomic)) return true
  }
  if (life.withdrawal !== undefined && status === 402) life.end = 'withdrew'
  request.result = life.end === 'withdrew' ? 'passed' : 'refused'
  return true
}

/** Whether a voucher is above the balance on the chain, which the client then takes. */
async function isAbove(life: Life, maxAtomic: bigint): Promise<boolean> {
  if (life.id === undefined) return false
  life.balanceAtomic = (await readChannel(life.site, life.id)).balanceAtomic
  life.corrections++
  return life.balanceAtomic < maxAtomic
}

/** Updates what the client keeps as the stock one does: it never copies what the service says. */
function accept(life: Life, request: Sent, answer: Answer, signed: Signed): void {
  const { success, extra, amount } = settlementOf(new Response(null, { headers: answer.headers }))
  if (success !== true || signed.headers['payment-redeem']) return
  const { chargedAmount, channelState } = extra as Extra
  const told = BigInt(chargedAmount)
  request.toldAtomic = told
  if (told > request.priceAtomic) life.faults.push(`charged ${told} of ${request.priceAtomic}`)
  if (BigInt(channelState.chargedCumulativeAmount) !== signed.baseAtomic + told) {
    // A stored answer comes with the state of now.
    life.corrections++
    return
  }
  // Of two requests at once one deposit may be enough for both.
  const isOwn = life.deposits.some(({ amountAtomic }) => String(amountAtomic) === amount)
  if (signed.depositAtomic > 0n && amount !== '' && !isOwn)
    life.faults.push(`a deposit of ${signed.depositAtomic} was told as ${amount}`)
  life.chargedAtomic = signed.baseAtomic + told
  life.balanceAtomic += signed.depositAtomic
}

type Extra = {
  chargedAmount: string
  channelState: {
    channelId: string
    balance: string
    totalClaimed: string
    chargedCumulativeAmount: string
  }
}

/** Takes the state of a corrective 402, as the stock client: by its own signature and the chain. */
async function correct(life: Life, { status, required }: Answer): Promise<boolean> {
  const error = required?.error ?? ''
  if (status !== 402 || !required || !correctable.has(error) || !life.id) return false
  const { channelState, voucherState } = (channelOffer(required, life.site.id)?.extra ?? {}) as {
    channelState?: Extra['channelState']
    voucherState?: { signedMaxClaimable: string; signature: Hex }
  }
  life.corrections++
  const onChain = await readChannel(life.site, life.id)
  life.balanceAtomic = onChain.balanceAtomic
  if (channelState === undefined || voucherState === undefined) {
    life.chargedAtomic = onChain.claimedAtomic
    return true
  }
  const charged = BigInt(channelState.chargedCumulativeAmount)
  const signed = BigInt(voucherState.signedMaxClaimable)
  const message = { channelId: life.id, maxClaimableAmount: signed }
  const chainId = life.site.network.chainId
  const typed = channelTypedData(chainId, 'Voucher', message)
  const { signature } = voucherState
  const signer = await recoverTypedDataAddress({ ...typed, signature }).catch(() => undefined)
  if (signer !== life.wallet.account.address)
    life.faults.push(`a correction by a voucher of ${signer}`)
  if (charged > signed) life.faults.push(`charged ${charged}, and only ${signed} was signed`)
  if (charged < onChain.claimedAtomic)
    life.faults.push(`charged ${charged}, and ${onChain.claimedAtomic} was claimed`)
  life.chargedAtomic = charged
  return true
}

/** Starts a withdrawal of all at the contract, and tells nobody. */
async function withdraw(life: Life): Promise<void> {
  const { config, site, id, wallet } = life
  if (config === undefined || id === undefined) return
  const { balanceAtomic, claimedAtomic } = await readChannel(site, id)
  if (balanceAtomic <= claimedAtomic) return
  const amountAtomic = balanceAtomic - claimedAtomic
  const at = Date.now()
  const isStarted = await sendAs(site, wallet, 'initiateWithdraw', [config, amountAtomic])
  if (isStarted) life.withdrawal = { at, amountAtomic }
}

/** A transaction of the payer itself. False when it failed, as a claim may come before it. */
export async function sendAs(
  { chain }: Site,
  { account: { address } }: Life['wallet'],
  functionName: 'initiateWithdraw' | 'finalizeWithdraw',
  args: readonly unknown[],
): Promise<boolean> {
  const data = encodeFunctionData({ abi: channelAbi, functionName, args })
  await chain.rpc('anvil_setBalance', [address, '0xde0b6b3a7640000'])
  await chain.rpc('anvil_impersonateAccount', [address])
  try {
    const call = { from: address, to: settlementAddress, data, gas: '0x493e0' }
    const hash = await chain.rpc('eth_sendTransaction', [call])
    for (let looks = 0; looks < 100; looks++) {
      const receipt = await chain.rpc('eth_getTransactionReceipt', [hash])
      if (receipt) return (receipt as { status: Hex }).status === '0x1'
      await Bun.sleep(100)
    }
    return false
  } catch {
    return false
  }
}

export async function readChannel(
  { chain }: Site,
  id: Hex,
): Promise<{ balanceAtomic: bigint; claimedAtomic: bigint }> {
  const data = encodeFunctionData({ abi: channelAbi, functionName: 'channels', args: [id] })
  const words = (await chain.rpc('eth_call', [{ to: settlementAddress, data }, 'latest'])) as Hex
  return {
    balanceAtomic: BigInt(words.slice(0, 66)),
    claimedAtomic: BigInt(`0x${words.slice(66)}`),
  }
}

async function signTerms(
  life: Life,
  target: string,
  init: RequestInit,
  terms: ChannelTerms,
): Promise<string | undefined> {
  const required = await offersOf(target, init)
  const { config, site, wallet, chargedAtomic: base } = life
  if (!required || !config || !channelOffer(required, site.id)) return undefined
  return payChannel(required, wallet.account, { network: site.id, base, config, ...terms })
}

/** All offers of a request; undefined when there is no 402. */
async function offersOf(target: string, init: RequestInit): Promise<Required | undefined> {
  const asked = await ask(target, init).catch(() => undefined)
  if (asked?.response.status !== 402) return undefined
  return { ...asked.required, accepts: asked.whole.accepts ?? asked.required.accepts ?? [] }
}

type Answer = {
  /** 0: the connection broke. */
  status: number
  headers: Headers
  body: Record<string, unknown>
  /** Of a 402. */
  required?: Required
}

async function fetchAnswer(target: string, init: RequestInit): Promise<Answer> {
  try {
    const response = await fetch(target, { ...init, signal: AbortSignal.timeout(answerMaxMs) })
    const { status, headers } = response
    const text = await response.text()
    // A stream that was cut has no end.
    const isCut = text.startsWith('data:') && !text.includes('[DONE]')
    if (isCut) return { status: 0, headers: new Headers(), body: {} }
    const body = membersOf(text)
    const required = headers.get('payment-required')
    return { status, headers, body, ...(required && { required: JSON.parse(atob(required)) }) }
  } catch {
    return { status: 0, headers: new Headers(), body: {} }
  }
}

const paying = (header: string) => ({ 'payment-signature': header })

function isTransient({ status, body }: Answer): boolean {
  return (
    status === 0 ||
    status >= 500 ||
    status === 429 ||
    status === 409 ||
    body.code === 'payment-in-progress'
  )
}

function saidBy({ status, body, required }: Answer): Said {
  const { code, reason } = body
  const said = { code: String(code ?? ''), reason: String(reason ?? required?.error ?? '') }
  return { at: Date.now(), status, ...said }
}

function tokenOf({ redeem }: Record<string, unknown>): string | undefined {
  if (typeof redeem !== 'object' || redeem === null || !('token' in redeem)) return undefined
  return typeof redeem.token === 'string' ? redeem.token : undefined
}
