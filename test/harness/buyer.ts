import { type Address, type Hex, keccak256, type LocalAccount, stringToBytes } from 'viem'
import * as Permit from '../../src/protocol/Permit'

/**
 * A buyer that signs by viem and sets every member explicitly, so that tests can send requests that
 * no honest client would send.
 */

export type Accept = {
  scheme: string
  network: string
  amount: string
  asset: Address
  payTo: Address
  maxTimeoutSeconds: number
  extra: Record<string, string>
}

export type Required = {
  x402Version: number
  error: string
  accepts: Accept[]
  resource: { url: string }
  extensions: Record<string, { info: Record<string, unknown>; schema: object }>
}

/** A parsed 402. */
export type Asked = {
  response: Response
  body: Record<string, unknown>
  challenges: ParsedChallenge[]
  required: Required
  /** The x402 payload of the body, which has every offer. */
  whole: Required
}

export type ParsedChallenge = {
  id: string
  realm: string
  request: {
    amount: string
    currency: Address
    recipient: Address
    methodDetails: { chainId: number; credentialTypes: string[]; spender?: Address }
  }
  /** The unparsed texts, for the echo. */
  raw: Record<string, string>
}

/** Sends a request without a credential and parses the 402. */
export async function ask(url: string, init?: RequestInit): Promise<Asked> {
  return askedOf(await fetch(url, init))
}

/** Parses a 402. */
export async function askedOf(response: Response): Promise<Asked> {
  const header = response.headers.get('payment-required') ?? ''
  const required: Required = header === '' ? {} : JSON.parse(atob(header))
  const text = response.status === 402 ? await response.text() : ''
  const body: Record<string, unknown> = text === '' ? {} : JSON.parse(text)
  return { response, body, required, whole: wholeOf(body), challenges: challengesOf(response) }
}

/** The x402 payload of the body of a 402, in which offers of version 1 may be beside it. */
export function wholeOf(body: object): Required {
  return ('x402' in body ? body.x402 : body) as Required
}

/** Challenges of a response, each with its parameters as they were sent. */
export function challengesOf(response: Response): ParsedChallenge[] {
  const header = response.headers.get('www-authenticate')
  if (header === null) return []
  return header.split(/,\s*(?=Payment )/).map((text) => {
    const raw = Object.fromEntries(
      [...text.matchAll(/([a-z]+)="([^"]*)"/g)].map((match) => [match[1] ?? '', match[2] ?? '']),
    )
    return parsedOf(raw)
  })
}

/** Challenges of a 402, whole: the body has those that are shortened or missing in the header. */
export function wholeChallenges({ body, challenges }: Asked): ParsedChallenge[] {
  const { challenges: whole } = body as { challenges?: Record<string, string>[] }
  return whole?.map((raw) => parsedOf(raw)) ?? challenges
}

function parsedOf(raw: Record<string, string>): ParsedChallenge {
  const request = JSON.parse(Buffer.from(raw.request ?? '', 'base64url').toString())
  return { id: raw.id ?? '', realm: raw.realm ?? '', request, raw }
}

/** Replaces members of the signed or sent data. */
export type MppOptions = {
  nonce?: Hex
  validBefore?: bigint
  value?: bigint
  to?: Address
  from?: Address
  /** Members that replace those of the echoed challenge. */
  echo?: Record<string, string>
  /** A signature that replaces the real one. */
  signature?: (signature: Hex) => Hex
  source?: string
}

export const domains: Record<number, { name: string; version: string }> = {
  8453: { name: 'USD Coin', version: '2' },
  84532: { name: 'USDC', version: '2' },
  4663: { name: 'Global Dollar', version: '1' },
}

const authorizationTypes = {
  TransferWithAuthorization: [
    { name: 'from', type: 'address' },
    { name: 'to', type: 'address' },
    { name: 'value', type: 'uint256' },
    { name: 'validAfter', type: 'uint256' },
    { name: 'validBefore', type: 'uint256' },
    { name: 'nonce', type: 'bytes32' },
  ],
} as const

const permitTypes = {
  PermitWitnessTransferFrom: [
    { name: 'permitted', type: 'TokenPermissions' },
    { name: 'spender', type: 'address' },
    { name: 'nonce', type: 'uint256' },
    { name: 'deadline', type: 'uint256' },
    { name: 'witness', type: 'Witness' },
  ],
  TokenPermissions: [
    { name: 'token', type: 'address' },
    { name: 'amount', type: 'uint256' },
  ],
  Witness: [
    { name: 'to', type: 'address' },
    { name: 'validAfter', type: 'uint256' },
  ],
} as const

export const challengeHash = (challenge: ParsedChallenge): Hex =>
  keccak256(stringToBytes(challenge.id + challenge.realm))

const base64url = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
const base64 = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64')
export const inSeconds = (seconds: number) => BigInt(Math.floor(Date.now() / 1000) + seconds)

/** `Authorization` value with an EIP-3009 authorization for the challenge. */
export async function payMpp(
  challenge: ParsedChallenge,
  signer: LocalAccount,
  options: MppOptions = {},
): Promise<string> {
  const { amount, currency, recipient, methodDetails } = challenge.request
  const { chainId } = methodDetails
  const message = {
    from: options.from ?? signer.address,
    to: options.to ?? recipient,
    value: options.value ?? BigInt(amount),
    validAfter: 0n,
    validBefore: options.validBefore ?? inSeconds(300),
    nonce: options.nonce ?? challengeHash(challenge),
  }
  const signature = await signer.signTypedData({
    domain: { ...domains[chainId], chainId, verifyingContract: currency },
    types: authorizationTypes,
    primaryType: 'TransferWithAuthorization',
    message,
  })
  const payload = {
    type: 'authorization',
    ...message,
    value: String(message.value),
    validAfter: '0',
    validBefore: String(message.validBefore),
    signature: options.signature?.(signature) ?? signature,
  }
  const source = options.source ?? `did:pkh:eip155:${chainId}:${message.from}`
  return `Payment ${base64url({ challenge: { ...challenge.raw, ...options.echo }, payload, source })}`
}

/** `Authorization` value with a Permit2 witness transfer for the challenge. */
export async function payMppPermit2(
  challenge: ParsedChallenge,
  signer: LocalAccount,
  options: MppOptions = {},
): Promise<string> {
  const { amount, currency, recipient, methodDetails } = challenge.request
  const { chainId } = methodDetails
  const to = options.to ?? recipient
  const value = options.value ?? BigInt(amount)
  const nonce = BigInt(options.nonce ?? challengeHash(challenge))
  const expires = BigInt(Math.floor(Date.parse(challenge.raw.expires ?? '') / 1000))
  const deadline = options.validBefore ?? expires
  const signature = await signPermit(signer, chainId, {
    token: currency,
    value,
    nonce,
    deadline,
    to,
  })
  const payload = {
    type: 'permit2',
    permit: {
      permitted: [{ token: currency, amount: String(value) }],
      nonce: String(nonce),
      deadline: String(deadline),
    },
    transferDetails: [{ to, requestedAmount: String(value) }],
    witness: { to, validAfter: '0' },
    signature: options.signature?.(signature) ?? signature,
  }
  const source = options.source ?? `did:pkh:eip155:${chainId}:${options.from ?? signer.address}`
  return `Payment ${base64url({ challenge: { ...challenge.raw, ...options.echo }, payload, source })}`
}

export type X402Options = {
  network: string
  method: 'eip3009' | 'permit2'
  nonce?: Hex
  validBefore?: bigint
  value?: bigint
  to?: Address
  from?: Address
  /** Omits `accepted`. */
  bare?: boolean
  /** Members that replace those of `accepted`. */
  accepted?: Record<string, unknown>
  extensions?: Record<string, unknown>
  signature?: (signature: Hex) => Hex
}

/** `PAYMENT-SIGNATURE` value for one of the offers. */
export async function payX402(
  required: Required,
  signer: LocalAccount,
  options: X402Options,
): Promise<string> {
  const accept = required.accepts.find(
    (offer) =>
      offer.network === options.network && offer.extra.assetTransferMethod === options.method,
  )
  if (accept === undefined) throw new Error(`no offer ${options.network} ${options.method}`)
  const chainId = Number(accept.network.slice('eip155:'.length))
  const from = options.from ?? signer.address
  const to = options.to ?? accept.payTo
  const value = options.value ?? BigInt(accept.amount)
  const validBefore = options.validBefore ?? inSeconds(300)
  const nonce = options.nonce ?? randomNonce()
  let payload: Record<string, unknown>
  if (options.method === 'eip3009') {
    const message = { from, to, value, validAfter: 0n, validBefore, nonce }
    const signature = await signer.signTypedData({
      domain: { ...domains[chainId], chainId, verifyingContract: accept.asset },
      types: authorizationTypes,
      primaryType: 'TransferWithAuthorization',
      message,
    })
    const authorization = {
      ...message,
      value: String(value),
      validAfter: '0',
      validBefore: String(validBefore),
    }
    payload = { signature: options.signature?.(signature) ?? signature, authorization }
  } else {
    const signature = await signPermit(signer, chainId, {
      token: accept.asset,
      value,
      nonce: BigInt(nonce),
      deadline: validBefore,
      to,
    })
    const permit2Authorization = {
      from,
      permitted: { token: accept.asset, amount: String(value) },
      spender: accept.extra.spender,
      nonce: String(BigInt(nonce)),
      deadline: String(validBefore),
      witness: { to, validAfter: '0' },
    }
    payload = { signature: options.signature?.(signature) ?? signature, permit2Authorization }
  }
  return base64({
    x402Version: 2,
    payload,
    resource: required.resource,
    ...(options.bare ? {} : { accepted: { ...accept, ...options.accepted } }),
    ...(options.extensions === undefined ? {} : { extensions: options.extensions }),
  })
}

/** `X-PAYMENT` value of x402 version 1; `members` replace those of the payload. */
export async function payV1(
  required: Required,
  signer: LocalAccount,
  { members, ...options }: Partial<X402Options> & { members?: Record<string, unknown> } = {},
): Promise<string> {
  const terms = { network: 'eip155:8453', method: 'eip3009', ...options } as const
  const { payload } = JSON.parse(atob(await payX402(required, signer, terms)))
  return base64({ x402Version: 1, scheme: 'exact', network: 'base', payload, ...members })
}

/** Decodes a `PAYMENT-RESPONSE` header. */
export function settlementOf(response: Response): Record<string, unknown> {
  const header = response.headers.get('payment-response')
  return header === null ? {} : JSON.parse(atob(header))
}

/** Decodes a `Payment-Receipt` header. */
export function receiptOf(response: Response): Record<string, unknown> {
  const header = response.headers.get('payment-receipt')
  return header === null ? {} : JSON.parse(Buffer.from(header, 'base64url').toString())
}

export const randomNonce = (): Hex =>
  `0x${Buffer.from(crypto.getRandomValues(new Uint8Array(32))).toString('hex')}`

function signPermit(
  signer: LocalAccount,
  chainId: number,
  terms: { token: Address; value: bigint; nonce: bigint; deadline: bigint; to: Address },
): Promise<Hex> {
  return signer.signTypedData({
    domain: { name: 'Permit2', chainId, verifyingContract: Permit.permit2Address },
    types: permitTypes,
    primaryType: 'PermitWitnessTransferFrom',
    message: {
      permitted: { token: terms.token, amount: terms.value },
      spender: Permit.proxyAddress,
      nonce: terms.nonce,
      deadline: terms.deadline,
      witness: { to: terms.to, validAfter: 0n },
    },
  })
}
