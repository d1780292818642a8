import {
  type Abi,
  type Address,
  encodeFunctionData,
  type Hex,
  numberToHex,
  parseSignature,
} from 'viem'
import { account } from '../../src/demo/accounts'
import type { Asset } from '../../src/protocol/Asset'
import * as Permit from '../../src/protocol/Permit'

const usdc: Omit<Asset, 'address' | 'eip712'> = {
  symbol: 'USDC',
  decimals: 6,
  transfer: ['eip3009'],
  revertsOnUsedNonce: true,
  eip2612: true,
}
/** Chain A, main network. */
export const base = {
  chainId: 8453,
  asset: {
    ...usdc,
    address: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
    eip712: { name: 'USD Coin', version: '2' },
  },
} as const
/** Chain A, test network. */
export const sepolia = {
  chainId: 84532,
  asset: {
    ...usdc,
    address: '0x036CbD53842c5426634e7929541eC2318f3dCF7e',
    eip712: { name: 'USDC', version: '2' },
  },
} as const
/** Chain B. */
export const robinhood = {
  chainId: 4663,
  asset: {
    symbol: 'USDG',
    address: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
    decimals: 6,
    transfer: ['permit2', 'eip3009'],
    eip712: { name: 'Global Dollar', version: '1' },
    revertsOnUsedNonce: false,
    eip2612: true,
  },
} as const
export type Net = typeof base | typeof sepolia | typeof robinhood

/** The payee of the tests. */
export const payee = account(7).address
/** A `validBefore` or `deadline` in the far future. */
export const later = 4_000_000_000n

/** The message of transferWithAuthorization and receiveWithAuthorization. */
export type Authorization = {
  from: Address
  to: Address
  value: bigint
  validAfter: bigint
  validBefore: bigint
  nonce: Hex
}
let unique = 0n
/** A nonce that no other call of this process uses. */
export const nextNonce = (): Hex => numberToHex(++unique, { size: 32 })
/** 0.01 to account 7, valid for decades, with a fresh nonce. */
export const authorization = (from: Address, over: Partial<Authorization> = {}): Authorization => ({
  from,
  to: payee,
  value: 10_000n,
  validAfter: 0n,
  validBefore: later,
  nonce: nextNonce(),
  ...over,
})
/** Arguments of the call without the signature. */
export const list = (auth: Authorization) => [
  auth.from,
  auth.to,
  auth.value,
  auth.validAfter,
  auth.validBefore,
  auth.nonce,
]

const authorizationFields = [
  { name: 'from', type: 'address' },
  { name: 'to', type: 'address' },
  { name: 'value', type: 'uint256' },
  { name: 'validAfter', type: 'uint256' },
  { name: 'validBefore', type: 'uint256' },
  { name: 'nonce', type: 'bytes32' },
]
const types = {
  TransferWithAuthorization: authorizationFields,
  ReceiveWithAuthorization: authorizationFields,
  CancelAuthorization: [
    { name: 'authorizer', type: 'address' },
    { name: 'nonce', type: 'bytes32' },
  ],
  Permit: [
    { name: 'owner', type: 'address' },
    { name: 'spender', type: 'address' },
    { name: 'value', type: 'uint256' },
    { name: 'nonce', type: 'uint256' },
    { name: 'deadline', type: 'uint256' },
  ],
}

/** Signs one of the token's messages with a demo account, by viem. */
export function sign(
  network: Net,
  signer: number,
  primaryType: keyof typeof types,
  message: Record<string, unknown>,
): Promise<Hex> {
  const domain = {
    ...network.asset.eip712,
    chainId: network.chainId,
    verifyingContract: network.asset.address,
  }
  return account(signer).local().signTypedData({ domain, types, primaryType, message })
}

/** Arguments of the v, r, s overloads. */
export const vrs = (signature: Hex) => {
  const { v, r, s } = parseSignature(signature)
  return [Number(v), r, s]
}

/** Calldata of the overload with this number of arguments. */
export function encode(abi: Abi, functionName: string, args: readonly unknown[]): Hex {
  const overload = abi.filter(
    (item) =>
      item.type === 'function' && item.name === functionName && item.inputs.length === args.length,
  )
  return encodeFunctionData({ abi: overload, functionName, args })
}

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

/** Arguments of `settle` on chain B: 0.01 to account 7 by Permit2, with a fresh nonce. */
export const permitted = async (
  signer: number,
  over: { amount?: bigint; validAfter?: bigint } = {},
) => {
  const { amount = 10_000n, validAfter = 0n } = over
  const permit = {
    permitted: { token: robinhood.asset.address, amount },
    nonce: BigInt(nextNonce()),
    deadline: later,
  }
  const witness = { to: payee, validAfter }
  const signature = await account(signer)
    .local()
    .signTypedData({
      domain: {
        name: 'Permit2',
        chainId: robinhood.chainId,
        verifyingContract: Permit.permit2Address,
      },
      types: permitTypes,
      primaryType: 'PermitWitnessTransferFrom',
      message: { ...permit, spender: Permit.proxyAddress, witness },
    })
  return [permit, account(signer).address, witness, signature] as const
}
