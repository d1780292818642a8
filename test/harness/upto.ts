import type { Address, Hex, LocalAccount } from 'viem'
import { account } from '../../src/demo/accounts'
import { permit2Address } from '../../src/protocol/Permit'
import { proxyAddress } from '../../src/protocol/Upto'
import { type Accept, ask, inSeconds, type Required, randomNonce } from './buyer'

/** A buyer that pays by the x402 scheme `upto`. */

export type UptoOptions = {
  network: string
  nonce?: Hex
  deadline?: bigint
  /** The signed ceiling; that of the offer by default. */
  ceiling?: bigint
  facilitator?: Address
  to?: Address
  /** The payer where another key signs, as for a wallet that is a contract. */
  from?: Address
  /** Members that replace those of `accepted`. */
  accepted?: Record<string, unknown>
  extensions?: Record<string, unknown>
}

export const uptoTypes = {
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
    { name: 'facilitator', type: 'address' },
    { name: 'validAfter', type: 'uint256' },
  ],
}

/** The offer of the scheme `upto` on a network; undefined when there is none. */
export function uptoOffer({ accepts }: Required, network: string): Accept | undefined {
  return accepts.find((each) => each.scheme === 'upto' && each.network === network)
}

/** `PAYMENT-SIGNATURE` value for the `upto` offer of a network. */
export async function payUpto(
  required: Required,
  signer: LocalAccount,
  options: UptoOptions,
): Promise<string> {
  const accept = uptoOffer(required, options.network)
  if (accept === undefined) throw new Error(`no upto offer on ${options.network}`)
  const amount = options.ceiling ?? BigInt(accept.amount)
  const facilitator = options.facilitator ?? (accept.extra.facilitatorAddress as Address)
  const to = options.to ?? accept.payTo
  const deadline = options.deadline ?? inSeconds(300)
  const nonce = BigInt(options.nonce ?? randomNonce())
  const signature = await signer.signTypedData({
    domain: {
      name: 'Permit2',
      chainId: Number(accept.network.slice('eip155:'.length)),
      verifyingContract: permit2Address,
    },
    types: uptoTypes,
    primaryType: 'PermitWitnessTransferFrom',
    message: {
      permitted: { token: accept.asset, amount },
      spender: proxyAddress,
      nonce,
      deadline,
      witness: { to, facilitator, validAfter: 0n },
    },
  })
  const permit2Authorization = {
    from: options.from ?? signer.address,
    permitted: { token: accept.asset, amount: String(amount) },
    spender: proxyAddress,
    nonce: String(nonce),
    deadline: String(deadline),
    witness: { to, facilitator, validAfter: '0' },
  }
  const json = {
    x402Version: 2,
    payload: { signature, permit2Authorization },
    resource: required.resource,
    accepted: { ...accept, ...options.accepted },
    ...(options.extensions === undefined ? {} : { extensions: options.extensions }),
  }
  return Buffer.from(JSON.stringify(json)).toString('base64')
}

/** Asks for the price of a request and signs it: the header that pays for it. */
export async function signUpto(
  url: string,
  init: RequestInit,
  options: Partial<UptoOptions> & { buyer?: number; signer?: LocalAccount } = {},
): Promise<Record<string, string>> {
  const { buyer = 1, signer = account(buyer).local(), network = 'eip155:8453', ...rest } = options
  const { required } = await ask(url, init)
  const value = await payUpto(required, signer, { network, ...rest })
  return { 'payment-signature': value }
}
