import type { Address, Hex } from 'viem'
import * as AddressText from '../protocol/Address'
import * as Amount from '../protocol/Amount'
import type { Asset, TransferMethod } from '../protocol/Asset'
import * as Challenge from '../protocol/Challenge'
import * as Crypto from '../protocol/Crypto'
import { base64url, decodeJson, encodeJson } from '../protocol/Header'
import * as Json from '../protocol/Json'
import * as Network from '../protocol/Network'
import * as Permit from '../protocol/Permit'
import * as Transfer from '../protocol/Transfer'
import type * as TokenPermit from './TokenPermit'

/** The buyer's side of a 402: its terms, and the credential that pays them. */

export type Protocol = 'mpp' | 'x402'

/** One way to pay a 402. */
export type Terms = {
  protocol: Protocol
  method: TransferMethod
  network: Network.Id
  chainId: number
  asset: KnownAsset
  payTo: Address
  amountAtomic: bigint
  source: MppSource | X402Source
}

type MppSource = { kind: 'mpp'; echo: Challenge.Echo; params: Readonly<Record<string, string>> }
type X402Source = {
  kind: 'x402'
  accepted: Json.JsonObject
  resource: Json.JsonObject | undefined
  extensions: Json.JsonObject | undefined
  timeoutSeconds: number
}

/** A dollar stablecoin. Only for these assets the dollar value of an amount is known. */
export type KnownAsset = Pick<Asset, 'symbol' | 'address' | 'decimals' | 'eip712'> & {
  network: Network.Id
}

const knownAssets: readonly KnownAsset[] = [
  {
    network: 'eip155:8453',
    symbol: 'USDC',
    address: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
    decimals: 6,
    eip712: { name: 'USD Coin', version: '2' },
  },
  {
    network: 'eip155:84532',
    symbol: 'USDC',
    address: '0x036CbD53842c5426634e7929541eC2318f3dCF7e',
    decimals: 6,
    eip712: { name: 'USDC', version: '2' },
  },
  {
    network: 'eip155:4663',
    symbol: 'USDG',
    address: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
    decimals: 6,
    eip712: { name: 'Global Dollar', version: '1' },
  },
]

/** A server cannot make us sign anything that is valid for longer. */
const timeoutSecondsMax = 300

/**
 * MPP challenges first, each protocol in the order of the server. Unreadable offers are omitted.
 */
export function decode(headers: Headers): Terms[] {
  return [...ofMpp(headers.get('www-authenticate')), ...ofX402(headers.get('payment-required'))]
}

/** `0.010000 USDG on eip155:4663 by permit2 (x402)`. */
export function describe(terms: Terms): string {
  const amount = Amount.toDecimal(terms.amountAtomic, terms.asset.decimals)
  const { symbol } = terms.asset
  return `${amount} ${symbol} on ${terms.network} by ${terms.method} (${terms.protocol})`
}

/** A payment in the form of a request header. */
export type Credential = { header: string; value: string; transfer: Transfer.Transfer }

/**
 * Signs the payment of the terms. `now` in unix ms; `random` are 32 bytes that were never used
 * before.
 */
export function pay(
  terms: Terms,
  input: {
    privateKey: Uint8Array
    now: number
    random: Uint8Array
    /** The permit for an x402 payment whose server sponsors the approval by it. */
    permit?: TokenPermit.Info
  },
): Credential {
  return terms.source.kind === 'mpp'
    ? payMpp(terms, terms.source, input)
    : payX402(terms, terms.source, input)
}

type Input = Parameters<typeof pay>[1]

const permitExtension = 'eip2612GasSponsoring'

/** Whether the server accepts an EIP-2612 permit with the payment instead of an approval. */
export function takesPermit({ method, source }: Terms): boolean {
  const extensions = source.kind === 'x402' ? source.extensions : undefined
  return method === 'permit2' && Json.isObject(extensions?.[permitExtension])
}

function payMpp(terms: Terms, source: MppSource, input: Input): Credential {
  const { echo, params } = source
  const expiresAt = Date.parse(echo.expires ?? '')
  const latest = input.now + timeoutSecondsMax * 1000
  const limit = Number.isFinite(expiresAt) ? Math.min(expiresAt, latest) : latest
  const transfer = sign(terms, input.privateKey, {
    nonce: Challenge.nonceOf(echo),
    validBefore: BigInt(Math.floor(limit / 1000)),
  })
  const json = {
    challenge: params,
    payload: terms.method === 'eip3009' ? mppAuthorization(transfer) : mppPermit(transfer),
    source: `did:pkh:eip155:${transfer.chainId}:${transfer.payer}`,
  }
  return {
    header: 'authorization',
    value: `Payment ${base64url(JSON.stringify(json))}`,
    transfer,
  }
}

function mppAuthorization(transfer: Transfer.Transfer) {
  return { type: 'authorization', ...authorization(transfer), signature: transfer.signature }
}

function mppPermit(transfer: Transfer.Transfer) {
  const amount = String(transfer.amountAtomic)
  return {
    type: 'permit2',
    permit: {
      permitted: [{ token: transfer.asset, amount }],
      nonce: String(BigInt(transfer.nonce)),
      deadline: String(transfer.validBefore),
    },
    transferDetails: [{ to: transfer.payee, requestedAmount: amount }],
    witness: { to: transfer.payee, validAfter: String(transfer.validAfter) },
    signature: transfer.signature,
  }
}

function payX402(terms: Terms, source: X402Source, input: Input): Credential {
  const { accepted, resource } = source
  const extensions = salted(source.extensions, input.random)
  const bound = terms.method === 'eip3009' && resource !== undefined && extensions !== undefined
  const nonce =
    bound && Object.hasOwn(extensions, 'mppx')
      ? sha256(
          [accepted, resource, extensions]
            .map((part) => base64url(Json.canonicalize(part)))
            .join('|'),
        )
      : Crypto.hex(input.random)
  const transfer = sign(terms, input.privateKey, {
    nonce,
    validBefore: BigInt(Math.floor(input.now / 1000) + source.timeoutSeconds),
  })
  const { signature } = transfer
  const payload =
    terms.method === 'eip3009'
      ? { authorization: authorization(transfer), signature }
      : { permit2Authorization: permit2Authorization(transfer), signature }
  const sent = input.permit === undefined ? extensions : withPermit(extensions, input.permit)
  const json = { x402Version: 2, resource, accepted, payload, extensions: sent }
  return { header: 'payment-signature', value: encodeJson(json), transfer }
}

function withPermit(
  extensions: Json.JsonObject | undefined,
  info: TokenPermit.Info,
): Json.JsonObject {
  const declared = extensions && Json.member(extensions, permitExtension)
  return { ...extensions, [permitExtension]: { ...(Json.isObject(declared) && declared), info } }
}

/** mppx's route binding: with this salt, the nonce is a hash of everything that is bought. */
function salted(
  extensions: Json.JsonObject | undefined,
  random: Uint8Array,
): Json.JsonObject | undefined {
  const mppx = extensions === undefined ? undefined : Json.member(extensions, 'mppx')
  if (!Json.isObject(mppx)) return extensions
  const info = Json.member(mppx, 'info')
  const nonce = Crypto.hex(random).slice(2)
  return {
    ...extensions,
    mppx: { ...mppx, info: { ...(Json.isObject(info) ? info : {}), nonce } },
  }
}

function authorization(transfer: Transfer.Transfer) {
  return {
    from: transfer.payer,
    to: transfer.payee,
    value: String(transfer.amountAtomic),
    validAfter: String(transfer.validAfter),
    validBefore: String(transfer.validBefore),
    nonce: transfer.nonce,
  }
}

function permit2Authorization(transfer: Transfer.Transfer) {
  return {
    from: transfer.payer,
    permitted: { token: transfer.asset, amount: String(transfer.amountAtomic) },
    spender: Permit.proxyAddress,
    nonce: String(BigInt(transfer.nonce)),
    deadline: String(transfer.validBefore),
    witness: { to: transfer.payee, validAfter: String(transfer.validAfter) },
  }
}

function sign(
  terms: Terms,
  privateKey: Uint8Array,
  bounds: { nonce: Hex; validBefore: bigint },
): Transfer.Transfer {
  const unsigned = {
    method: terms.method,
    network: terms.network,
    chainId: terms.chainId,
    asset: terms.asset.address,
    payer: Crypto.addressOf(privateKey),
    payee: terms.payTo,
    amountAtomic: terms.amountAtomic,
    validAfter: 0n,
    ...bounds,
  }
  const signature = Crypto.sign(Transfer.digest(unsigned, terms.asset), privateKey)
  return { ...unsigned, signature }
}

function sha256(text: string): Hex {
  return `0x${new Bun.CryptoHasher('sha256').update(text).digest('hex')}`
}

function ofMpp(value: string | null): Terms[] {
  const terms: Terms[] = []
  for (const params of Challenge.parseHeader(value ?? '')) {
    const { id, realm, method, intent, request } = params
    if (id === undefined || realm === undefined || request === undefined) continue
    if (method !== 'evm' || intent !== 'charge') continue
    const { expires, digest, opaque } = params
    const echo: Challenge.Echo = { id, realm, method, intent, request, expires, digest, opaque }
    const asked = readable(() => Challenge.parseRequest(request))
    if (asked === undefined) continue
    const asset = known(`eip155:${asked.chainId}`, asked.currency)
    if (asset === undefined) continue
    const common = {
      protocol: 'mpp' as const,
      network: asset.network,
      chainId: asked.chainId,
      asset,
      payTo: asked.recipient,
      amountAtomic: asked.amountAtomic,
      source: { kind: 'mpp' as const, echo, params },
    }
    for (const type of asked.credentialTypes) {
      if (type === 'authorization') terms.push({ ...common, method: 'eip3009' })
      // Without our spender it is the permit2 of the draft, whose witness does not bind the payee.
      else if (type === 'permit2' && asked.permit2) terms.push({ ...common, method: 'permit2' })
    }
  }
  return terms
}

function ofX402(value: string | null): Terms[] {
  if (value === null) return []
  const required = readable(() => decodeJson(value, 'either'))
  const accepts = required === undefined ? undefined : Json.member(required, 'accepts')
  if (required === undefined || !Array.isArray(accepts)) return []
  const terms: Terms[] = []
  for (const accepted of accepts) {
    if (!Json.isObject(accepted) || Json.member(accepted, 'scheme') !== 'exact') continue
    const one = readable(() => ofAccepted(accepted, required))
    if (one !== undefined) terms.push(one)
  }
  return terms
}

function ofAccepted(accepted: Json.JsonObject, required: Json.JsonObject): Terms | undefined {
  const asset = known(Json.text(accepted, 'network'), Json.address(accepted, 'asset'))
  if (asset === undefined) return undefined
  const extra = Json.optionalObject(accepted, 'extra') ?? {}
  const method = Json.optionalText(extra, 'assetTransferMethod') ?? 'eip3009'
  if (method !== 'eip3009' && method !== 'permit2') return undefined
  const spender = Json.optionalText(extra, 'spender')
  if (spender !== undefined && !AddressText.equal(spender, Permit.proxyAddress)) return undefined
  const seconds = Json.member(accepted, 'maxTimeoutSeconds')
  return {
    protocol: 'x402',
    method,
    network: asset.network,
    chainId: Network.chainIdOf(asset.network) ?? 0,
    asset,
    payTo: Json.address(accepted, 'payTo'),
    amountAtomic: Json.uint(accepted, 'amount'),
    source: {
      kind: 'x402',
      accepted,
      resource: Json.optionalObject(required, 'resource'),
      extensions: Json.optionalObject(required, 'extensions'),
      timeoutSeconds: isTimeout(seconds) ? seconds : timeoutSecondsMax,
    },
  }
}

function isTimeout(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) > 0 && Number(value) <= timeoutSecondsMax
}

function known(network: string, address: Address): KnownAsset | undefined {
  return knownAssets.find((asset) => asset.network === network && asset.address === address)
}

/** Undefined instead of a JsonError: an invalid offer is omitted. */
function readable<T>(read: () => T): T | undefined {
  try {
    return read()
  } catch (error) {
    if (error instanceof Json.JsonError) return undefined
    throw error
  }
}
