import type { Address, Hex } from 'viem'
import { builtIns } from '../../config/builtin'
import * as AddressText from '../../protocol/Address'
import * as Amount from '../../protocol/Amount'
import type { Asset, TransferMethod } from '../../protocol/Asset'
import * as Challenge from '../../protocol/Challenge'
import * as Channel from '../../protocol/Channel'
import { decodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import * as Network from '../../protocol/Network'
import * as Permit from '../../protocol/Permit'
import { permitName } from '../../protocol/Sponsoring'
import * as Upto from '../../protocol/Upto'
import * as X402 from '../../protocol/X402'

/** The buyer's side of a 402: its terms. */

export type Scheme = 'exact' | 'upto' | 'channel'

/** One way to pay a 402. */
export type Terms = {
  scheme: Scheme
  /** With the scheme `channel`, how a deposit is paid. */
  method: TransferMethod
  network: Network.Id
  chainId: number
  asset: KnownAsset
  payTo: Address
  /** With the scheme `upto`, the ceiling; with `channel`, the most that this request may cost. */
  amountAtomic: bigint
  /** With the scheme `upto`, the only account that may settle. */
  facilitator?: Address | undefined
  channel?: ChannelTerms | undefined
  source: MppSource | X402Source
}

/** What identifies the merchant's side of a channel, and its least deposit if it names one. */
type ChannelTerms = Pick<X402.ChannelTerms, 'receiverAuthorizer' | 'withdrawDelay'> & {
  minDepositAtomic: bigint | undefined
  /** The `extra` of the offer. In a corrective 402 it has the server's state of the channel. */
  extra: Json.JsonObject
}

export type MppSource = {
  kind: 'mpp'
  /** Of the credential. */
  nonce: Hex
  params: Readonly<Record<string, string>>
}
export type X402Source = {
  kind: 'x402'
  accepted: Json.JsonObject
  resource: Json.JsonObject | undefined
  extensions: Json.JsonObject | undefined
  timeoutSeconds: number
}

/**
 * A dollar stablecoin with six decimals: an atomic unit is a millionth of a dollar. Only for these assets
 * the dollar value of an amount is known.
 */
export type KnownAsset = Pick<Asset, 'symbol' | 'address' | 'decimals' | 'eip712'> & {
  network: Network.Id
}

/** The assets of the built-in networks, which are dollar stablecoins. */
const knownAssets: readonly KnownAsset[] = builtIns.map(({ id, table }) => {
  return { network: id, ...table.asset }
})

/** Limits how long a signature is valid, whatever the server requests. */
export const timeoutSecondsMax = 300

/**
 * MPP challenges first, each protocol in the order of the server. Unreadable offers are omitted.
 * `body` is the text of the 402, which has the x402 offers that are too long for its head.
 */
export function decode(headers: Headers, body = ''): Terms[] {
  const required = requiredOf(headers, body)
  const mpp = ofMpp(headers.get('www-authenticate'))
  return required === undefined ? mpp : [...mpp, ...ofRequired(required)]
}

/** The x402 `PaymentRequired` object of a 402 with the offers of head and body. */
export function requiredOf(headers: Headers, body: string): Json.JsonObject | undefined {
  const value = headers.get('payment-required')
  const required = value === null ? undefined : Json.readable(() => decodeJson(value, 'either'))
  const further = Json.readable(() => X402.inBody(Json.parse(body)))
  return required && { ...required, accepts: [...acceptsOf(required), ...acceptsOf(further)] }
}

/** `0.010000 USDG on eip155:4663 by permit2 (x402)`, or `up to 0.010000 USDG ... (x402, upto)`. */
export function describe(terms: Terms): string {
  const { scheme, network, method, source } = terms
  const most = scheme === 'upto' ? 'up to ' : ''
  const way = scheme === 'exact' ? source.kind : `${source.kind}, ${scheme}`
  return `${most}${amountOf(terms)} on ${network} by ${method} (${way})`
}

/** `0.010000 USDG`: the amount of the terms, or another one in their asset. */
export function amountOf({ asset, amountAtomic }: Terms, atomic = amountAtomic): string {
  return `${Amount.toDecimal(atomic, asset.decimals)} ${asset.symbol}`
}

/** Whether the server accepts an EIP-2612 permit with the payment instead of an approval. */
export function takesPermit({ method, source }: Terms): boolean {
  const extensions = source.kind === 'x402' ? source.extensions : undefined
  return method === 'permit2' && Json.isObject(extensions?.[permitName])
}

function ofMpp(value: string | null): Terms[] {
  const terms: Terms[] = []
  for (const params of Challenge.parseHeader(value ?? '')) {
    const { id, realm, method, intent, request } = params
    if (id === undefined || realm === undefined || request === undefined) continue
    if (method !== 'evm' || intent !== 'charge') continue
    const asked = Json.readable(() => Challenge.parseRequest(request))
    if (asked === undefined) continue
    const asset = known(`eip155:${asked.chainId}`, asked.currency)
    if (asset === undefined) continue
    const common = {
      scheme: 'exact' as const,
      network: asset.network,
      chainId: asked.chainId,
      asset,
      payTo: asked.recipient,
      amountAtomic: asked.amountAtomic,
      source: { kind: 'mpp' as const, nonce: Challenge.nonceOf({ id, realm }), params },
    }
    for (const type of asked.credentialTypes) {
      if (type === 'authorization') terms.push({ ...common, method: 'eip3009' })
      // Without our spender it is the Permit2 method of the draft, whose witness does not bind the
      // payee.
      else if (type === 'permit2' && asked.permit2) terms.push({ ...common, method: 'permit2' })
    }
  }
  return terms
}

/** More than any server offers in these assets: each may be compared with all others, and asked for at a node. */
const termsMax = 64

/** The first terms of an x402 `PaymentRequired` object. */
export function ofRequired(required: Json.JsonObject): Terms[] {
  const terms: Terms[] = []
  for (const accepted of acceptsOf(required)) {
    if (terms.length === termsMax) break
    const one = Json.readable(() => ofAccepted(accepted, required))
    // The head may have an offer in a shorter form than the body.
    if (one !== undefined && !terms.some((known) => isSame(known, one))) terms.push(one)
  }
  return terms
}

/** Whether two terms move the same money to the same payee, by any protocol. */
export function isSame(other: Terms, terms: Terms): boolean {
  return moveOf(other) === moveOf(terms)
}

/** The money that terms move, and where to. */
function moveOf({ scheme, asset, method, payTo, amountAtomic, channel }: Terms): string {
  const { receiverAuthorizer, withdrawDelay } = channel ?? {}
  const money = [asset.network, asset.address, method, payTo, amountAtomic]
  return [scheme, ...money, receiverAuthorizer, withdrawDelay].join(' ')
}

function acceptsOf(required: Json.JsonObject | undefined): Json.JsonObject[] {
  const accepts = required && Json.member(required, 'accepts')
  return Array.isArray(accepts) ? accepts.filter(Json.isObject) : []
}

function ofAccepted(accepted: Json.JsonObject, required: Json.JsonObject): Terms | undefined {
  const named = Json.member(accepted, 'scheme')
  const scheme = named === Channel.scheme ? 'channel' : named
  if (scheme !== 'exact' && scheme !== 'upto' && scheme !== 'channel') return undefined
  const asset = known(
    Json.read(accepted, 'network', 'text'),
    Json.read(accepted, 'asset', 'address'),
  )
  if (asset === undefined) return undefined
  const extra = Json.optional(accepted, 'extra', 'object') ?? {}
  const isUpto = scheme === 'upto'
  const method =
    Json.optional(extra, 'assetTransferMethod', 'text') ?? (isUpto ? 'permit2' : 'eip3009')
  if (method !== 'permit2' && (method !== 'eip3009' || isUpto)) return undefined
  const channel = scheme === 'channel' ? channelOf(extra) : undefined
  const spender = Json.optional(extra, 'spender', 'text')
  const proxy = isUpto ? Upto.proxyAddress : Permit.proxyAddress
  if (spender !== undefined && !AddressText.equal(spender, proxy)) return undefined
  const seconds = Json.member(accepted, 'maxTimeoutSeconds')
  return {
    scheme,
    facilitator: isUpto ? Json.read(extra, 'facilitatorAddress', 'address') : undefined,
    channel,
    method,
    network: asset.network,
    chainId: Network.chainIdOf(asset.network) ?? 0,
    asset,
    payTo: Json.read(accepted, 'payTo', 'address'),
    amountAtomic: Json.read(accepted, 'amount', 'uint'),
    source: {
      kind: 'x402',
      accepted,
      resource: Json.optional(required, 'resource', 'object'),
      extensions: Json.optional(required, 'extensions', 'object'),
      timeoutSeconds: isTimeout(seconds) ? seconds : timeoutSecondsMax,
    },
  }
}

/** Throws a JsonError for values that no channel can have. */
function channelOf(extra: Json.JsonObject): ChannelTerms {
  const receiverAuthorizer = Json.read(extra, 'receiverAuthorizer', 'address')
  const delay = Json.member(extra, 'withdrawDelay')
  const withdrawDelay = typeof delay === 'number' ? delay : Channel.withdrawDelayMin
  const isDelay =
    Number.isInteger(withdrawDelay) &&
    withdrawDelay >= Channel.withdrawDelayMin &&
    withdrawDelay <= Channel.withdrawDelayMax
  if (!isDelay || receiverAuthorizer === AddressText.zero) throw new Json.JsonError('not a channel')
  const minDepositAtomic = Json.readable(() => Json.optional(extra, 'minDeposit', 'uint'))
  return { receiverAuthorizer, withdrawDelay, minDepositAtomic, extra }
}

function isTimeout(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) > 0 && Number(value) <= timeoutSecondsMax
}

/** The asset of a built-in network. */
export function known(network: string, address: Address): KnownAsset | undefined {
  return knownAssets.find((asset) => asset.network === network && asset.address === address)
}
