import { x402UptoPermit2ProxyABI } from '@x402/evm'
import {
  type Address,
  concat,
  type Hex,
  hashTypedData,
  numberToHex,
  parseAbi,
  parseSignature,
  size,
  zeroHash,
} from 'viem'
import { account } from '../../src/demo/accounts'
import * as Permit from '../../src/protocol/Permit'
import * as Upto from '../../src/protocol/Upto'
import { base, encode, later, nextNonce, payee, sign } from './stablecoin'

export const permit2Abi = parseAbi([
  'function invalidateUnorderedNonces(uint256 wordPos, uint256 mask)',
  'function nonceBitmap(address owner, uint256 wordPos) view returns (uint256)',
  'error SignatureExpired(uint256 deadline)',
  'error InvalidNonce()',
  'error InvalidSigner()',
  'error InvalidSignature()',
  'error InvalidContractSignature()',
])

/** The arguments that `settle` and `settleWithPermit` share, without the amount. */
export type Terms = {
  permit: { permitted: { token: Address; amount: bigint }; nonce: bigint; deadline: bigint }
  owner: Address
  witness: { to: Address; facilitator: Address; validAfter: bigint }
}

/** Up to 0.01 of account 1 to account 7, by account 0, with a fresh nonce. */
export const uptoOf = (over: {
  owner?: Address
  ceiling?: bigint
  nonce?: bigint
  deadline?: bigint
  witness?: Partial<Terms['witness']>
}): Terms => ({
  permit: {
    permitted: { token: base.asset.address, amount: over.ceiling ?? 10_000n },
    nonce: over.nonce ?? BigInt(nextNonce()),
    deadline: over.deadline ?? later,
  },
  owner: over.owner ?? account(1).address,
  witness: { to: payee, facilitator: account(0).address, validAfter: 0n, ...over.witness },
})

const types = {
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
} as const

const typedData = ({ permit, witness }: Terms) =>
  ({
    domain: {
      name: 'Permit2',
      chainId: base.chainId,
      verifyingContract: Permit.permit2Address,
    },
    types,
    primaryType: 'PermitWitnessTransferFrom',
    message: { ...permit, spender: Upto.proxyAddress, witness },
  }) as const

/** What viem hashes. */
export const digestOf = (terms: Terms): Hex => hashTypedData(typedData(terms))

/** Signed by a demo account, by viem. */
export const signUpto = (terms: Terms, signer: number): Promise<Hex> =>
  account(signer).local().signTypedData(typedData(terms))

/** The payer's EIP-2612 permit, as the proxy takes it. */
export type Permit2612 = { value: bigint; deadline: bigint; r: Hex; s: Hex; v: number }

/** Its signature is none, so that every token refuses it. */
export const brokenPermit = (value: bigint): Permit2612 => {
  return { value, deadline: later, r: zeroHash, s: zeroHash, v: 27 }
}

/** The first permit of a demo account, for Permit2. */
export async function permit2612(signer: number, value: bigint): Promise<Permit2612> {
  const owner = account(signer).address
  const message = { owner, spender: Permit.permit2Address, value, nonce: 0n, deadline: later }
  const signature = await sign(base, signer, 'Permit', message)
  return { value, deadline: later, ...split(signature) }
}

function split(signature: Hex) {
  const { r, s, v } = parseSignature(signature)
  return { r, s, v: Number(v) }
}

const abi = x402UptoPermit2ProxyABI

/** Calldata of `settle`. */
export const settle = ({ permit, owner, witness }: Terms, amount: bigint, signature: Hex) =>
  encode(abi, 'settle', [permit, amount, owner, witness, signature])

/** Calldata of `settleWithPermit`. */
export const settleWith = (
  permit2612: Permit2612,
  { permit, owner, witness }: Terms,
  amount: bigint,
  signature: Hex,
) => encode(abi, 'settleWithPermit', [permit2612, permit, amount, owner, witness, signature])

/** The parts of a payload of the scheme `upto`, as the clients write it. */
export type Payload = {
  signature: Hex
  permit2Authorization: {
    from: Address
    permitted: { token: Address; amount: string }
    spender: Address
    nonce: string
    deadline: string
    witness: { to: Address; facilitator: Address; validAfter: string }
  }
}
export type Sponsoring = { info: { amount: string; deadline: string; signature: Hex } }

export const termsOf = ({ permit2Authorization: signed }: Payload): Terms => ({
  permit: {
    permitted: { token: signed.permitted.token, amount: BigInt(signed.permitted.amount) },
    nonce: BigInt(signed.nonce),
    deadline: BigInt(signed.deadline),
  },
  owner: signed.from,
  witness: { ...signed.witness, validAfter: BigInt(signed.witness.validAfter) },
})

export const permitOf = ({ info }: Sponsoring): Permit2612 => ({
  value: BigInt(info.amount),
  deadline: BigInt(info.deadline),
  ...split(info.signature),
})

/**
 * Code of a token that calls the proxy again at each call, and answers true only if the guard
 * against reentrancy refused that.
 */
export function reentrantToken(call: Hex): Hex {
  const length = numberToHex(size(call), { size: 2 })
  const selectorOfGuard = '3ee5aeb5'
  const run = (offset: number): Hex =>
    concat([
      // codecopy(0, offset, length)
      concat(['0x61', length, '0x60', numberToHex(offset, { size: 1 }), '0x5f39']),
      // pop(call(gas(), proxy, 0, 0, length, 0, 0))
      concat(['0x5f5f61', length, '0x5f5f73', Upto.proxyAddress, '0x5af150']),
      // returndatacopy(0, 0, 4); return(eq(shr(224, mload(0)), selector))
      `0x60045f5f3e5f5160e01c63${selectorOfGuard}145f5260205ff3`,
    ])
  return concat([run(size(run(0))), call])
}
