import type { Hex } from 'viem'
import type { Client } from '../../chain/client'
import * as Receipt from '../../chain/receipt'
import * as Amount from '../../protocol/Amount'
import * as Channel from '../../protocol/Channel'
import * as Crypto from '../../protocol/Crypto'
import { decodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import * as Network from '../../protocol/Network'
import * as X402 from '../../protocol/X402'
import { CommandError } from '../Command'
import { isNonceUsed } from '../nodes'
import { withClient } from './allowance'
import { readAnswerText } from './body'
import type { ChannelFiles, Held } from './channel-files'
import * as Terms from './Terms'
import * as Voucher from './Voucher'

/**
 * Purchases by payment channels. What is signed is on the disk before it is sent, and until its end is
 * known the same request sends the same voucher.
 */

type ChannelPurchase = {
  terms: Terms.Terms
  /** URL of what is bought. */
  url: string
  /** Identifies the request. */
  request: string
  privateKey: Uint8Array
  /** Node for the facts of the chain; undefined: the public one. */
  rpc: string | undefined
  /** Unix ms. */
  now: () => number
  files: ChannelFiles
  /** The wanted deposit; undefined: the least one. */
  depositAtomic: bigint | undefined
  /** Called before a deposit is kept and sent. Throws a CommandError where it is not allowed. */
  allow(deposit: Voucher.Deposit, id: Hex): Promise<void>
}

/** Sends payments, and uses the last answer while the channel is still held. */
type Way<A, R> = {
  send(
    payment: Json.JsonObject,
    idempotencyKey: string,
  ): Promise<{ answer: A; reply: Voucher.Reply }>
  finish(answer: A, end: End): Promise<R>
}

type End = {
  state: Voucher.State
  /** What was charged; undefined: the answer does not say. */
  chargedAtomic: bigint | undefined
  /** What is wrong with the answer, which then changes nothing. */
  fault: string | undefined
}

/** So many requests to a merchant run at once; each channel needs a deposit of its own. */
const channelsMax = 8

/** After this time beyond its end a reorganisation cannot bring a deposit back. */
const marginSeconds = 120

/** Payments of other requests that are kept for their answers. */
const sentMax = 8

/** Buys a request by a channel. Throws a CommandError when nothing was sent, or the chain is silent. */
export async function buyByChannel<A, R>(purchase: ChannelPurchase, way: Way<A, R>): Promise<R> {
  const { request } = purchase
  const held = await hold(purchase)
  try {
    let { state } = held
    const keep = (next: Voucher.State) => {
      held.save(next)
      state = next
    }
    for (let tries = 1; ; tries++) {
      let sent = state.sent.find((each) => each.request === request)
      if (sent === undefined) {
        const { deposit, ...signed } = await sign(state, purchase)
        sent = signed
        const others = state.sent.slice(1 - sentMax)
        keep({ ...state, deposit, sent: [...others, sent] })
      }
      const { answer, reply } = await way.send(JSON.parse(sent.payment), sent.idempotencyKey)
      const { next, fault, isCorrected = false } = await judge(state, sent, reply, purchase)
      const isSettled = reply.settled?.success === true && fault === undefined
      const chargedAtomic = isSettled ? next.chargedAtomic - state.chargedAtomic : undefined
      keep(next)
      // A server that corrects each voucher gets no third one.
      if (!isCorrected || tries > 1)
        return await way.finish(answer, { state, chargedAtomic, fault })
    }
  } finally {
    held.release()
  }
}

/** The channel of a request for this process alone, as files and chain show it. */
async function hold(purchase: ChannelPurchase): Promise<Held & { state: Voucher.State }> {
  const { files, request, terms } = purchase
  const rank = (state: Voucher.State | undefined) => {
    if (state === undefined) return 3
    if (state.sent.some((each) => each.request === request)) return 0
    return Voucher.restOf(state) < terms.amountAtomic ? 2 : 1
  }
  for (const { id, config, state: seen } of channelsOf(purchase).toSorted(
    (a, b) => rank(a.state) - rank(b.state),
  )) {
    const held = seen?.isClosing ? undefined : files.hold(id)
    if (held === undefined) continue
    try {
      const state = await refresh(held.state, config, purchase)
      if (!state.isClosing) return { ...held, state }
    } catch (error) {
      held.release()
      throw error
    }
    held.release()
  }
  throw new CommandError(`All ${channelsMax} channels with ${terms.payTo} are in use.`)
}

/** The channels of the wallet with the merchant, as their files show them. */
function channelsOf({ terms, files, privateKey }: Pick<ChannelPurchase, Peeked>) {
  const payer = Crypto.addressOf(privateKey)
  return Array.from({ length: channelsMax }, (_, index) => {
    const config = Voucher.configOf(terms, payer, index)
    const id = Voucher.idOf({ network: terms.network, config })
    return { id, config, state: files.read(id) }
  })
}

type Peeked = 'terms' | 'files' | 'privateKey'

/** Whether a channel of the wallet has enough left for the terms, as far as its file knows. */
export function hasChannel(purchase: Pick<ChannelPurchase, Peeked>): boolean {
  const { amountAtomic } = purchase.terms
  return channelsOf(purchase).some(
    ({ state }) => state?.isClosing === false && Voucher.restOf(state) >= amountAtomic,
  )
}

/** The deposit for what is needed. Throws a CommandError when the wanted one is too small. */
export function depositOf(
  terms: Terms.Terms,
  neededAtomic: bigint,
  wantedAtomic?: bigint | undefined,
): bigint {
  const { channel, amountAtomic } = terms
  const least = Amount.greatest(channel?.minDepositAtomic ?? 0n, neededAtomic)
  if (wantedAtomic !== undefined && wantedAtomic < least)
    throw new CommandError(
      `The channel takes a deposit of at least ${Terms.amountOf(terms, least)}.`,
    )
  // Where the merchant names none, for five requests of this price.
  const usual = channel?.minDepositAtomic === undefined ? 5n * amountAtomic : least
  return wantedAtomic ?? Amount.greatest(usual, least)
}

/** Reads the chain where the file does not know the channel, or the end of a deposit. */
async function refresh(
  known: Voucher.State | undefined,
  config: Channel.Config,
  { terms, url, rpc }: ChannelPurchase,
): Promise<Voucher.State> {
  if (known !== undefined && known.deposit === undefined) return known
  const { network } = terms
  return atNode({ network }, rpc, async (client) => {
    const onChain = await readChannel(client, { network, config })
    const { balanceAtomic, claimedAtomic: chargedAtomic, withdrawEndsAt } = onChain
    if (known?.deposit === undefined) {
      const isClosing = withdrawEndsAt !== undefined
      const nothing = { deposit: undefined, sent: [] }
      return { network, config, url, chargedAtomic, balanceAtomic, isClosing, ...nothing }
    }
    const { deposit, sent } = known
    const transfer = { ...deposit, asset: config.token, payer: config.payer }
    if (await isNonceUsed(client, transfer, 'latest'))
      return { ...known, balanceAtomic, deposit: undefined }
    const block = Receipt.parseBlock(await client.call('eth_getBlockByNumber', ['latest', false]))
    const chainSeconds = block === undefined ? 0 : Number(block.timestamp)
    // While it may still arrive, it is sent again in place of another one.
    if (chainSeconds <= deposit.until + marginSeconds) return known
    const others = sent.filter(({ hasDeposit }) => !hasDeposit)
    return { ...known, balanceAtomic, deposit: undefined, sent: others }
  })
}

/** Works with a node of the channel's chain. Throws a CommandError when it does not answer. */
export function atNode<T>(
  { network }: Pick<Voucher.State, 'network'>,
  rpc: string | undefined,
  work: (client: Client) => Promise<T>,
): Promise<T> {
  return withClient({ network, chainId: Network.chainIdOf(network) ?? 0 }, { rpc }, work)
}

/** Reads a channel. Throws a CommandError where its contract is not on the chain. */
export async function readChannel(
  client: Client,
  channel: Pick<Voucher.State, 'network' | 'config'>,
) {
  const id = Voucher.idOf(channel)
  const read = async (call: Channel.Call) => {
    const answer = await client.call('eth_call', [call, 'latest'])
    const pair = Receipt.isHex(answer) ? Channel.parsePair(answer) : undefined
    if (pair === undefined)
      throw new CommandError(`${channel.network} has no contract for channels.`)
    return pair
  }
  const [balanceAtomic, claimedAtomic] = await read(Channel.channelsCall(id))
  const [, since] = await read(Channel.pendingWithdrawalCall(id))
  /** When a withdrawal may end, unix seconds. */
  const withdrawEndsAt = since === 0n ? undefined : Number(since) + channel.config.withdrawDelay
  return { balanceAtomic, claimedAtomic, withdrawEndsAt }
}

/** Signs the voucher of a request, with a deposit where too little is left. */
async function sign(
  state: Voucher.State,
  purchase: ChannelPurchase,
): Promise<Voucher.Sent & { deposit: Voucher.Deposit | undefined }> {
  const { terms, privateKey, request, now } = purchase
  const { amountAtomic } = terms
  const shortAtomic = state.chargedAtomic + amountAtomic - state.balanceAtomic
  const hasDeposit = shortAtomic > 0n
  let { deposit } = state
  if (hasDeposit && deposit === undefined) {
    const wanted = depositOf(terms, shortAtomic, purchase.depositAtomic)
    const random = crypto.getRandomValues(new Uint8Array(32))
    deposit = Voucher.signDeposit(state, terms, wanted, { privateKey, now: now(), random })
    await purchase.allow(deposit, Voucher.idOf(state))
  }
  if (hasDeposit && deposit && deposit.amountAtomic < shortAtomic)
    throw new CommandError(
      `A deposit of ${Terms.amountOf(terms, deposit.amountAtomic)} is signed and has not arrived: ` +
        `ask again after ${new Date(deposit.until * 1000).toISOString()}.`,
    )
  const part = hasDeposit ? { deposit } : {}
  const payment = JSON.stringify(Voucher.sign(state, terms, privateKey, part))
  const idempotencyKey = crypto.randomUUID()
  return { request, idempotencyKey, payment, amountAtomic, hasDeposit, deposit }
}

/** What the answer to a payment or a refund changes. `isCorrected`: another voucher may be signed. */
export async function judge(
  state: Voucher.State,
  sent: Voucher.Sent,
  reply: Voucher.Reply,
  { rpc }: Pick<ChannelPurchase, 'rpc'>,
): Promise<{ next: Voucher.State; fault?: string; isCorrected?: boolean }> {
  const ended = Voucher.without(state, sent)
  if (reply.settled?.success === true) {
    const next = Voucher.settle(state, sent, reply.settled)
    if (next !== undefined && !('fault' in next)) return { next }
    return { next: ended, fault: next?.fault ?? 'its PAYMENT-RESPONSE cannot be read' }
  }
  const correction = Voucher.correctionOf(state, reply)
  if (correction === undefined) return { next: reply.end === 'unknown' ? state : ended }
  const onChain = await atNode(state, rpc, (client) => readChannel(client, state))
  if (correction.kind === 'balance') {
    const { balanceAtomic } = onChain
    return { next: { ...ended, balanceAtomic }, isCorrected: balanceAtomic !== state.balanceAtomic }
  }
  const next = Voucher.correct(ended, correction.extra, onChain)
  return 'fault' in next ? { next: state, fault: next.fault } : { next, isCorrected: true }
}

/** What an answer says about the channel. Leaves the body readable. */
export async function replyOf(response: Response): Promise<Voucher.Reply> {
  const { status, headers, ok } = response
  const decoded = (name: string) => {
    const value = headers.get(name)
    return value === null ? undefined : Terms.readable(() => decodeJson(value, 'either'))
  }
  const settled = decoded('payment-response')
  const isRefused = status >= 400 && status < 500 && status !== 409
  if (status !== 402) {
    return { settled, required: undefined, end: ok ? 'served' : isRefused ? 'refused' : 'unknown' }
  }
  const body = await readAnswerText(response.clone())
  const further = Terms.readable(() => X402.inBody(Json.parse(body)))
  return { settled, required: decoded('payment-required'), further, end: 'refused' }
}
