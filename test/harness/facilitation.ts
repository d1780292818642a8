import type { Address, Hex, LocalAccount } from 'viem'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Permit from '../../src/protocol/Permit'
import * as Upto from '../../src/protocol/Upto'
import { inSeconds, randomNonce } from './buyer'

/**
 * Requests of a resource server to a facilitator, signed by viem, with every member set explicitly,
 * so that tests can send requests that no honest caller would send.
 */

export type Requirements = {
  scheme: string
  network: string
  asset: Address
  amount: string
  payTo: Address
  maxTimeoutSeconds: number
  extra: Record<string, unknown>
}

export type Body = {
  x402Version: number
  paymentPayload: {
    x402Version: number
    payload: Record<string, unknown> & { signature: Hex }
    accepted: Record<string, unknown>
    resource?: Record<string, unknown>
    extensions?: Record<string, unknown>
  }
  paymentRequirements: Requirements
}

export type Made = {
  method?: 'eip3009' | 'permit2'
  /** `upto`: Permit2, with `amountAtomic` as the ceiling. */
  scheme?: 'exact' | 'upto'
  /** Who may settle `upto`; by default the demo's relayer. */
  facilitator?: Address
  from?: LocalAccount
  /** The payer that replaces the signer. */
  payer?: Address
  to?: Address
  amountAtomic?: bigint
  validAfter?: bigint
  validBefore?: bigint
  nonce?: Hex
  spender?: Address
  /** Domain that replaces the token's in the signature. */
  domain?: { name?: string; version?: string; chainId?: number; verifyingContract?: Address }
  signature?: (signature: Hex) => Hex
  /** Requirements that differ from the signature. */
  requirements?: Partial<Requirements>
  accepted?: Record<string, unknown>
  extensions?: Record<string, unknown>
}

const payee = account(7).address

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

const permitTypes = (scheme: Made['scheme']) => ({
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
    ...(scheme === 'upto' ? [{ name: 'facilitator', type: 'address' }] : []),
    { name: 'validAfter', type: 'uint256' },
  ],
})

/** A request that is valid unless the options make it invalid. */
export async function makeBody(network: NetworkConfig, made: Made = {}): Promise<Body> {
  const { scheme = 'exact', amountAtomic = 5_000n, to = payee } = made
  const { facilitator = account(0).address } = made
  const isUpto = scheme === 'upto'
  const method = made.method ?? (isUpto ? 'permit2' : 'eip3009')
  const signer = made.from ?? account(1).local()
  const { asset, id } = network
  const requirements: Requirements = {
    scheme,
    network: id,
    asset: asset.address,
    amount: String(amountAtomic),
    payTo: payee,
    maxTimeoutSeconds: 60,
    extra: {
      ...asset.eip712,
      ...(method === 'permit2' ? { assetTransferMethod: 'permit2' } : {}),
      ...(isUpto ? { facilitatorAddress: facilitator } : {}),
    },
    ...made.requirements,
  }
  const terms = {
    from: made.payer ?? signer.address,
    to,
    amountAtomic,
    validAfter: made.validAfter ?? 0n,
    validBefore: made.validBefore ?? inSeconds(300),
    nonce: made.nonce ?? randomNonce(),
    domain: made.domain ?? {},
    spender: made.spender ?? (isUpto ? Upto.proxyAddress : Permit.proxyAddress),
    scheme,
    facilitator,
  }
  const payload = await (method === 'eip3009' ? authorize : permit)(network, signer, terms)
  const signature = made.signature?.(payload.signature) ?? payload.signature
  return {
    x402Version: 2,
    paymentPayload: {
      x402Version: 2,
      payload: { ...payload, signature },
      accepted: { ...requirements, ...made.accepted },
      resource: { url: 'https://shop.example.com/item', description: '', mimeType: '' },
      ...(made.extensions === undefined ? {} : { extensions: made.extensions }),
    },
    paymentRequirements: requirements,
  }
}

type Terms = {
  from: Address
  to: Address
  amountAtomic: bigint
  validAfter: bigint
  validBefore: bigint
  nonce: Hex
  domain: NonNullable<Made['domain']>
  spender: Address
  scheme: Made['scheme']
  facilitator: Address
}

/** The same payment, of which the resource server settles this amount. */
export function charging(body: Body, amount: bigint | number | string): Body {
  const copy = structuredClone(body)
  copy.paymentRequirements.amount = String(amount)
  return copy
}

async function authorize({ asset, chainId }: NetworkConfig, signer: LocalAccount, terms: Terms) {
  const { from, to, amountAtomic: value, validAfter, validBefore, nonce } = terms
  const message = { from, to, value, validAfter, validBefore, nonce }
  const domain = { ...asset.eip712, chainId, verifyingContract: asset.address, ...terms.domain }
  const types = authorizationTypes
  const primaryType = 'TransferWithAuthorization'
  const signature = await signer.signTypedData({ domain, types, primaryType, message })
  const text = {
    value: String(value),
    validAfter: String(validAfter),
    validBefore: String(validBefore),
  }
  return { signature, authorization: { ...message, ...text } }
}

async function permit({ asset, chainId }: NetworkConfig, signer: LocalAccount, terms: Terms) {
  const { from, to, amountAtomic, validAfter, validBefore, nonce, spender, scheme } = terms
  const named = scheme === 'upto' ? { facilitator: terms.facilitator } : {}
  const token = terms.domain.verifyingContract ?? asset.address
  const signature = await signer.signTypedData({
    domain: {
      name: 'Permit2',
      chainId: terms.domain.chainId ?? chainId,
      verifyingContract: Permit.permit2Address,
    },
    types: permitTypes(scheme),
    primaryType: 'PermitWitnessTransferFrom',
    message: {
      permitted: { token, amount: amountAtomic },
      spender,
      nonce: BigInt(nonce),
      deadline: validBefore,
      witness: { to, ...named, validAfter },
    },
  })
  const permit2Authorization = {
    from,
    permitted: { token, amount: String(amountAtomic) },
    spender,
    nonce: String(BigInt(nonce)),
    deadline: String(validBefore),
    witness: { to, ...named, validAfter: String(validAfter) },
  }
  return { signature, permit2Authorization }
}

export type Answer = { status: number; headers: Headers; json: Record<string, unknown> }

/** Posts a body, or the text of one, and reads the JSON of the answer. */
export async function post(
  url: string,
  body: unknown,
  headers: Record<string, string> = {},
): Promise<Answer> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  })
  const json = (await response.json()) as Record<string, unknown>
  return { status: response.status, headers: response.headers, json }
}
