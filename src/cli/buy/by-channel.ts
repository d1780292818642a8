import type { Address, Hex } from 'viem'
import type { Client } from '../../chain/client'
import * as Receipt from '../../chain/receipt'
import * as Amount from '../../protocol/Amount'
import * as Channel from '../../protocol/Channel'
import { decodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import { CommandError } from '../Command'
import { isNonceUsed, withClient } from '../nodes'
import type { Wallet } from './allowance'
import { readAnswerText } from './body'
import type { ChannelFiles, Held, Open } from './channel-files'
import * as Terms from './Terms'
import * as Voucher from './Voucher'

/**
 * Purchases by payment channels. What is signed is on the disk before it is sent, and until its end is
 * known the same request sends the same voucher. All vouchers of a request are within its limit.
 */

type ChannelPurchase = Wallet & {
  terms: Terms.Terms
  /** URL of what is bought. */
  url: string
  /** The most that the request may cost, by all of its vouchers. */
  maxAtomic: bigint
  /** Identifies the request. */
  request: string
  files: ChannelFiles
  /** The wanted deposit; undefined: the least one. */
  depositAtomic: bigint | undefined
  /** The only channel to pay from; undefined: any with the merchant. */
  only?: Hex | undefined
  /** Called before a deposit is kept and sent. Throws a CommandError where it is not allowed. */
  allow(deposit: Voucher.Deposit, id: Hex): Promise<void>
}

/** Sends payments, and uses the last answer while the channel is still held. */
type Way<A, R> = {
  /** A payment is kept before it is sent; `id` is that of its channel. */
  send(sent: Voucher.Sent, id: Hex): Promise<{ answer: A; reply: Voucher.Reply }>
  finish(answer: A, judged: Voucher.Judged): Promise<R>
}

/** So many requests to a merchant run at once; each channel needs a deposit of its own. */
const channelsMax = 8

/** Payments of other requests that are kept for their answers. */
const sentMax = 64

/** Longest text of an offer, which each payment repeats: no server takes longer heads. */
const offerMaxLength = 65_536

/** Buys a request by a channel. Throws a CommandError when nothing was sent, or the chain is silent. */
export async function buyByChannel<A, R extends object | number | string>(
  purchase: ChannelPurchase,
  way: Way<A, R>,
): Promise<R> {
  const { files, request, terms, only } = purchase
  let used = only
  const rank = (state: Voucher.State | undefined) => {
    if (state === undefined) return 3
    if (hasSent(state, request)) return 0
    return Voucher.restOf(state) < terms.amountAtomic ? 2 : 1
  }
  const ranked = channelsOf(purchase).toSorted((a, b) => rank(a.state) - rank(b.state))
  for (const { id, config, state: seen } of ranked) {
    const buy = async (held: Held) => {
      const fresh = { network: terms.network, config, url: purchase.url }
      const state = await refresh(held.state, fresh, purchase.rpc)
      return state.isClosing ? undefined : buyFrom({ ...held, state }, purchase, way)
    }
    const bought = seen?.isClosing ? undefined : await files.use(id, buy, request)
    if (bought !== undefined) return bought
    // The request waits for its channel. Only while that channel buys the same request, this is another purchase.
    const shown = files.read(id)
    const isCurrent = shown?.isClosing === false && shown.current === request
    if (seen && hasSent(seen, request) && !isCurrent) {
      used = id
      break
    }
  }
  const all = `All ${channelsMax} channels with ${terms.payTo} are`
  throw new CommandError(`${used ? `The channel ${used} is` : all} in use.`)
}

function hasSent({ sent }: Voucher.State, request: string): boolean {
  return sent.some((each) => each.request === request)
}

/**
 * The channel of a payer whose voucher was sent for a request, and has no end: its payee may still charge
 * that, so another channel would pay the request twice. Undefined without one.
 */
export function begunOf(files: ChannelFiles, payer: Address, request: string): Hex | undefined {
  const begun = files
    .list()
    .find((state) => state.config.payer === payer && hasSent(state, request))
  return begun && Voucher.idOf(begun)
}

async function buyFrom<A, R>(open: Open, purchase: ChannelPurchase, way: Way<A, R>): Promise<R> {
  const { request, terms, maxAtomic } = purchase
  let { state } = open
  const keep = (next: Voucher.State) => {
    open.save(next)
    state = next
  }
  const ofRequest = () => state.sent.find((each) => each.request === request)
  const mayCost = (sent: Voucher.Sent | undefined) =>
    (sent?.takenAtomic ?? 0n) + terms.amountAtomic <= maxAtomic
  for (let tries = 1; ; tries++) {
    let sent = ofRequest()
    // Where no other one is within the limit, the same one may still get its answer.
    if (sent === undefined || (sent.isRefused && mayCost(sent))) {
      const signed = await sign(state, purchase)
      sent = signed.sent
      keep(signed.next)
    }
    const { answer, reply } = await way.send(sent, Voucher.idOf(state))
    const judged = await judge(state, sent, reply, purchase.rpc)
    const { next, isCorrected } = judged
    keep(next)
    const isAbove = isCorrected && !mayCost(ofRequest())
    const fault = isAbove ? 'it shows the voucher of this request as charged' : judged.fault
    // A server that corrects each voucher gets no third one.
    if (!isCorrected || isAbove || tries > 1) return await way.finish(answer, { ...judged, fault })
  }
}

/** The channels of the wallet with the merchant, as their files show them. */
export function channelsOf({ terms, files, payer, only }: Peeked) {
  return Array.from({ length: channelsMax }, (_, index) => {
    const config = Voucher.configOf(terms, payer, index)
    const id = Voucher.idOf({ network: terms.network, config })
    return { id, config, state: files.read(id) }
  }).filter(({ id }) => only === undefined || id === only)
}

type Peeked = Pick<ChannelPurchase, 'terms' | 'files' | 'payer' | 'only'>

/** Whether a channel of the wallet has enough left for the terms, as far as its file knows. */
export function hasChannel(purchase: Peeked): boolean {
  const { amountAtomic } = purchase.terms
  return channelsOf(purchase).some(
    ({ state }) => state?.isClosing === false && Voucher.restOf(state) >= amountAtomic,
  )
}

/** The deposit for what is needed. Throws a CommandError when the wanted one is too small. */
export function depositOf(terms: Terms.Terms, neededAtomic: bigint, wantedAtomic?: bigint): bigint {
  const { minDepositAtomic } = terms.channel ?? {}
  const least = Amount.greatest(minDepositAtomic ?? 0n, neededAtomic)
  if (wantedAtomic !== undefined && wantedAtomic < least)
    throw new CommandError(
      `The channel takes a deposit of at least ${Terms.amountOf(terms, least)}.`,
    )
  // Where the merchant names none, for five requests of this price.
  return wantedAtomic ?? Amount.greatest(minDepositAtomic ?? 5n * terms.amountAtomic, neededAtomic)
}

/** Reads the chain where the file does not know the channel, or the end of a deposit. */
export async function refresh(
  known: Voucher.State | undefined,
  { network, config, url }: Pick<Voucher.State, 'network' | 'config' | 'url'>,
  rpc: string | undefined,
): Promise<Voucher.State> {
  if (known !== undefined && known.deposit === undefined) return known
  return withClient(network, rpc, async (client) => {
    const onChain = await readChannel(client, { network, config })
    const { balanceAtomic, claimedAtomic: chargedAtomic, withdrawEndsAt } = onChain
    if (known?.deposit === undefined) {
      const isClosing = withdrawEndsAt !== undefined
      const nothing = { deposit: undefined, sent: [] }
      return { network, config, url, chargedAtomic, balanceAtomic, isClosing, ...nothing }
    }
    const { deposit, sent } = known
    const transfer = { ...deposit, asset: config.token, payer: config.payer }
    const hasArrived = await isNonceUsed(client, transfer, deposit.until)
    // While it may still arrive, it is sent again in place of another one.
    if (hasArrived === undefined) return known
    const ended = sent.map((each) =>
      hasArrived || !each.hasDeposit ? each : { ...each, isRefused: true },
    )
    return { ...known, balanceAtomic, deposit: undefined, sent: ended }
  })
}

/** Reads a channel. Throws a CommandError where its contract is not on the chain. */
export async function readChannel(
  client: Client,
  channel: Pick<Voucher.State, 'network' | 'config'>,
) {
  const calls = Channel.stateCalls(Voucher.idOf(channel))
  const read = (call: Channel.Call) => client.call('eth_call', [call, 'latest'])
  const answers = await Promise.all(calls.map(read))
  const state = Channel.parseState(answers.map((each) => (Receipt.isHex(each) ? each : undefined)))
  if (state === undefined)
    throw new CommandError(`${channel.network} has no contract for channels.`)
  const { balanceAtomic, claimedAtomic, withdrawAt } = state
  /** When a withdrawal may end, unix ms. */
  const withdrawEndsAt = withdrawAt && withdrawAt + channel.config.withdrawDelay * 1000
  return { balanceAtomic, claimedAtomic, withdrawEndsAt }
}

/** Signs the voucher of a request, with a deposit where too little is left. */
async function sign(
  state: Voucher.State,
  purchase: ChannelPurchase,
): Promise<{ sent: Voucher.Sent; next: Voucher.State }> {
  const { terms, privateKey, request, now } = purchase
  const { amountAtomic, source } = terms
  // The files of all merchants are read together: one of them must not fill the memory for the others.
  if (JSON.stringify(source).length > offerMaxLength)
    throw new CommandError('The offer is too long to be paid by a channel.')
  const sumAtomic = state.chargedAtomic + amountAtomic
  const shortAtomic = sumAtomic - state.balanceAtomic
  let deposit = shortAtomic > 0n ? state.deposit : undefined
  if (shortAtomic > 0n && deposit === undefined) {
    const wanted = depositOf(terms, shortAtomic, purchase.depositAtomic)
    const random = crypto.getRandomValues(new Uint8Array(32))
    deposit = Voucher.signDeposit(state, terms, wanted, { privateKey, now: now(), random })
    await purchase.allow(deposit, Voucher.idOf(state))
  }
  if (deposit && deposit.amountAtomic < shortAtomic)
    throw new CommandError(
      `A deposit of ${Terms.amountOf(terms, deposit.amountAtomic)} is signed and has not arrived: ` +
        `ask again after ${new Date(deposit.until * 1000).toISOString()}.`,
    )
  const payment = JSON.stringify(Voucher.sign(state, terms, privateKey, { deposit }))
  const earlier = state.sent.find((each) => each.request === request)
  const sent = {
    ...{ request, payment, amountAtomic, hasDeposit: deposit !== undefined, isRefused: false },
    idempotencyKey: crypto.randomUUID(),
    signedAtomic: Amount.greatest(sumAtomic, earlier?.signedAtomic ?? 0n),
    takenAtomic: earlier?.takenAtomic ?? 0n,
  }
  const others = state.sent.filter((each) => each !== earlier)
  if (others.length >= sentMax) {
    // What a repetition of the request needs is forgotten last: its answer, and what it has cost.
    const isSpare = (each: Voucher.Sent) =>
      each.takenAtomic === 0n && (each.isRefused || each.request === each.idempotencyKey)
    const index = others.findIndex(isSpare)
    others.splice(Math.max(0, index), 1)
  }
  const next = { ...state, deposit: deposit ?? state.deposit, sent: [...others, sent] }
  return { sent, next }
}

/** What the answer to a payment changes. `sent`: the payment; undefined for a refund. */
export async function judge(
  state: Voucher.State,
  sent: Voucher.Sent | undefined,
  reply: Voucher.Reply,
  rpc: string | undefined,
): Promise<Voucher.Judged> {
  const { end, settled } = reply
  if (sent && end === 'served')
    return settled?.success === true
      ? Voucher.settle(state, sent, settled)
      : { next: Voucher.serve(state, sent) }
  const refused = Voucher.refuse(state, sent)
  const correction = Voucher.correctionOf(state, reply)
  if (correction === undefined) return { next: end === 'unknown' ? state : refused }
  const onChain = await withClient(state.network, rpc, (client) => readChannel(client, state))
  const { balanceAtomic, claimedAtomic } = onChain
  if (correction === 'balance')
    return {
      next: { ...refused, balanceAtomic },
      isCorrected: balanceAtomic !== state.balanceAtomic,
    }
  const chargedAtomic = Voucher.correct(state, correction, claimedAtomic)
  if (typeof chargedAtomic === 'string') return { next: state, fault: chargedAtomic }
  const next = Voucher.charge({ ...refused, balanceAtomic }, sent, chargedAtomic)
  return { next, isCorrected: true }
}

/** What an answer says about the channel. Leaves the body readable. */
export async function replyOf(response: Response): Promise<Voucher.Reply> {
  const { status, headers, ok } = response
  const encoded = headers.get('payment-response') ?? ''
  const settled = Json.readable(() => decodeJson(encoded, 'either'))
  const body = status === 402 ? await readAnswerText(response.clone()) : undefined
  const required = body === undefined ? undefined : Terms.requiredOf(headers, body)
  const isRefused = status >= 400 && status < 500 && status !== 409
  return { settled, required, end: ok ? 'served' : isRefused ? 'refused' : 'unknown' }
}
