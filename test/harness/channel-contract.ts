import {
  type Abi,
  type Address,
  decodeErrorResult,
  decodeEventLog,
  encodeAbiParameters,
  type Hex,
  hashTypedData,
  keccak256,
  parseAbi,
  parseAbiParameters,
  type TypedDataParameter,
  zeroHash,
} from 'viem'
import { account } from '../../src/demo/accounts'
import type { NodeReceipt } from '../../src/demo/chains'
import * as Artifacts from '../../src/demo/contracts/artifacts'
import * as Permit from '../../src/protocol/Permit'
import { base, encode, later, type Net, nextNonce, payee, sign } from './stablecoin'
import { type Permit2612, permit2Abi } from './upto-contract'

const [settlement, eip3009, permit2] = Artifacts.placed
if (!settlement || !eip3009 || !permit2) throw new Error('a contract of channels is missing')

/** The contract of channels, and its collectors of deposits. */
export const settlementAddress = settlement.address
export const eip3009Collector = eip3009.address
export const permit2Collector = permit2.address

/** Functions and events of the contract, and the errors of all contracts that a call can end with. */
export const channelAbi: Abi = [
  ...Artifacts.BatchSettlement.abi,
  ...Artifacts.Permit2DepositCollector.abi.filter(({ type }) => type === 'error'),
  ...parseAbi(['error OnlyX402BatchSettlement()', 'error FacetNotFound()']),
  ...permit2Abi.filter(({ type }) => type === 'error'),
]

export type ChannelConfig = {
  payer: Address
  payerAuthorizer: Address
  receiver: Address
  receiverAuthorizer: Address
  token: Address
  withdrawDelay: number
  salt: Hex
}
/** A row of a claim. */
export type Claim = {
  voucher: { channel: ChannelConfig; maxClaimableAmount: bigint }
  signature: Hex
  totalClaimed: bigint
}

/** Of account 1 to account 7, whose side signs with account 6; a day of delay. */
export const channelOf = (over: Partial<ChannelConfig> = {}): ChannelConfig => ({
  payer: account(1).address,
  payerAuthorizer: over.payer ?? account(1).address,
  receiver: payee,
  receiverAuthorizer: account(6).address,
  token: base.asset.address,
  withdrawDelay: 86_400,
  salt: zeroHash,
  ...over,
})

const fields = (text: string): TypedDataParameter[] =>
  text.split(',').map((each) => {
    const [type = '', name = ''] = each.split(' ')
    return { name, type }
  })
/** What vouchers, claims and refunds are signed as. */
export const channelTypes = {
  ChannelConfig: fields(
    'address payer,address payerAuthorizer,address receiver,address receiverAuthorizer,address token,uint40 withdrawDelay,bytes32 salt',
  ),
  Voucher: fields('bytes32 channelId,uint128 maxClaimableAmount'),
  Refund: fields('bytes32 channelId,uint256 nonce,uint128 amount'),
  ClaimBatch: fields('ClaimEntry[] claims'),
  ClaimEntry: fields('bytes32 channelId,uint128 maxClaimableAmount,uint128 totalClaimed'),
}
/** What a deposit by Permit2 is signed as. */
export const depositPermitTypes: Record<string, TypedDataParameter[]> = {
  PermitWitnessTransferFrom: fields(
    'TokenPermissions permitted,address spender,uint256 nonce,uint256 deadline,DepositWitness witness',
  ),
  TokenPermissions: fields('address token,uint256 amount'),
  DepositWitness: fields('bytes32 channelId'),
}

/** Typed data of the contract. */
export function channelTypedData(
  chainId: number,
  primaryType: keyof typeof channelTypes,
  message: Record<string, unknown>,
) {
  const name = 'x402 Batch Settlement'
  const domain = { name, version: '1', chainId, verifyingContract: settlementAddress }
  return { domain, types: channelTypes, primaryType, message }
}

/** What viem hashes. */
export const channelIdOf = (config: ChannelConfig, chainId: number = base.chainId): Hex =>
  hashTypedData(channelTypedData(chainId, 'ChannelConfig', config))

/** A claim of a total, with the voucher of a demo account over the ceiling. */
export async function claimOf(
  config: ChannelConfig,
  totalClaimed: bigint,
  over: { ceiling?: bigint; signer?: number; chainId?: number } = {},
): Promise<Claim> {
  const { ceiling = totalClaimed, signer = 1, chainId } = over
  const message = { channelId: channelIdOf(config, chainId), maxClaimableAmount: ceiling }
  return {
    voucher: { channel: config, maxClaimableAmount: ceiling },
    signature: await signChannel(signer, 'Voucher', message, chainId),
    totalClaimed,
  }
}

function signChannel(
  signer: number,
  primaryType: keyof typeof channelTypes,
  message: Record<string, unknown>,
  chainId: number = base.chainId,
): Promise<Hex> {
  return account(signer)
    .local()
    .signTypedData(channelTypedData(chainId, primaryType, message))
}

/** Calldata of `claimWithSignature`, signed by a demo account. */
export async function claimWithSignature(claims: readonly Claim[], signer = 6): Promise<Hex> {
  const rows = claims.map(({ voucher, totalClaimed }) => ({
    channelId: channelIdOf(voucher.channel),
    maxClaimableAmount: voucher.maxClaimableAmount,
    totalClaimed,
  }))
  const signature = await signChannel(signer, 'ClaimBatch', { claims: rows })
  return encode(channelAbi, 'claimWithSignature', [claims, signature])
}

/** Calldata of `refundWithSignature`, signed by a demo account. */
export async function refundWithSignature(
  config: ChannelConfig,
  amount: bigint,
  { nonce = 0n, signer = 6 }: { nonce?: bigint; signer?: number } = {},
): Promise<Hex> {
  const message = { channelId: channelIdOf(config), nonce, amount }
  const signature = await signChannel(signer, 'Refund', message)
  return encode(channelAbi, 'refundWithSignature', [config, amount, nonce, signature])
}

/** Calldata of `deposit`. */
export const depositCall = (
  config: ChannelConfig,
  amount: bigint,
  collector: Address,
  data: Hex = '0x',
): Hex => encode(channelAbi, 'deposit', [config, amount, collector, data])

/** Calldata of a deposit by EIP-3009. `of` is the channel that the payer signs for. */
export async function depositBy3009(
  config: ChannelConfig,
  amount: bigint,
  over: { signer?: number; network?: Net; of?: ChannelConfig } = {},
): Promise<Hex> {
  const { signer = 1, network = base, of = config } = over
  const salt = BigInt(nextNonce())
  const channelId = channelIdOf(of, network.chainId)
  const nonce = keccak256(
    encodeAbiParameters(parseAbiParameters('bytes32,uint256'), [channelId, salt]),
  )
  const window = { validAfter: 0n, validBefore: later }
  const message = { from: config.payer, to: eip3009Collector, value: amount, ...window, nonce }
  const signature = await sign(network, signer, 'ReceiveWithAuthorization', message)
  const data = encodeAbiParameters(parseAbiParameters('uint256,uint256,uint256,bytes'), [
    ...([window.validAfter, window.validBefore, salt, signature] as const),
  ])
  return depositCall(config, amount, eip3009Collector, data)
}

/**
 * Calldata of a deposit by Permit2. `of` is the channel that the payer signs for, `approval` its
 * EIP-2612 permit for Permit2.
 */
export async function depositByPermit2(
  config: ChannelConfig,
  amount: bigint,
  over: { signer?: number; network?: Net; of?: ChannelConfig; approval?: Permit2612 } = {},
): Promise<Hex> {
  const { signer = 1, network = base, of = config, approval } = over
  const permit = { permitted: { token: config.token, amount }, nonce: BigInt(nextNonce()) }
  const { chainId } = network
  const signature = await account(signer)
    .local()
    .signTypedData({
      domain: { name: 'Permit2', chainId, verifyingContract: Permit.permit2Address },
      types: depositPermitTypes,
      primaryType: 'PermitWitnessTransferFrom',
      message: {
        ...permit,
        spender: permit2Collector,
        deadline: later,
        witness: { channelId: channelIdOf(of, chainId) },
      },
    })
  const data = encodeAbiParameters(parseAbiParameters('uint256,uint256,bytes,bytes'), [
    ...([permit.nonce, later, signature, approval ? bytesOf(approval) : '0x'] as const),
  ])
  return depositCall(config, amount, permit2Collector, data)
}

const bytesOf = ({ value, deadline, v, r, s }: Permit2612): Hex =>
  encodeAbiParameters(parseAbiParameters('uint256,uint256,uint8,bytes32,bytes32'), [
    ...([value, deadline, v, r, s] as const),
  ])

/** Events of the contract: their names and values, without those of the token and of Permit2. */
export const eventsOf = ({ logs }: NodeReceipt) =>
  logs
    .filter(({ address }) => address.toLowerCase() === settlementAddress.toLowerCase())
    .map(({ topics, data }) => {
      const log = { abi: channelAbi, topics: topics as [Hex, ...Hex[]], data }
      const { eventName, args } = decodeEventLog(log)
      return { eventName, ...args } as Record<string, unknown>
    })

/** Name of the custom error; revert texts as they are. */
export function errorOf(data: Hex): string {
  const { errorName, args } = decodeErrorResult({ abi: channelAbi, data })
  return errorName === 'Error' ? String(args?.[0]) : errorName
}
