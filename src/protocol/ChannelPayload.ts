import type { Address, Hex } from 'viem'
import { zero } from './Address'
import type { Asset, TransferMethod } from './Asset'
import * as Channel from './Channel'
import * as Explanation from './Explanation'
import * as Json from './Json'
import { type Fault, fault } from './Problem'
import { checkTime, receiveDigest } from './Transfer'

/**
 * The payloads of x402 `batch-settlement` that buyers send: a voucher alone, with a deposit, or for a
 * refund. Their checks without a chain are those of the reference facilitator, in its order.
 */

export type Read = {
  voucher: Channel.Voucher
  /** Of the voucher. */
  signature: Hex
  /** What the payload says twice about a deposit by Permit2, and not the same. */
  depositFault: Fault | undefined
}

const kinds = ['voucher', 'deposit', 'refund'] as const

/** Throws a JsonError that names the member. Fields are read and not compared. */
export function read(payload: Json.JsonObject): Read {
  const type = Json.read(payload, 'type', 'text')
  const kind = kinds.find((each) => each === type)
  if (kind === undefined) throw new Json.JsonError('type is not "voucher", "deposit" or "refund"')
  const config = readConfig(Json.read(payload, 'channelConfig', 'object'))
  const signed = Json.read(payload, 'voucher', 'object')
  const channelId = Json.read(signed, 'channelId', 'word')
  const maxAtomic = Json.read(signed, 'maxClaimableAmount', 'uint128')
  const voucher: Channel.Voucher = { channelId, config, maxAtomic, kind }
  const signature = Json.read(signed, 'signature', 'signature')
  if (kind === 'refund') voucher.refundAtomic = Json.optional(payload, 'amount', 'uint128')
  if (kind !== 'deposit') return { voucher, signature, depositFault: undefined }
  const { deposit, fault } = readDeposit(Json.read(payload, 'deposit', 'object'), voucher)
  return { voucher: { ...voucher, deposit }, signature, depositFault: fault }
}

/** Throws a JsonError that names the member. */
export function readConfig(json: Json.JsonObject): Channel.Config {
  const withdrawDelay = Json.read(json, 'withdrawDelay', 'uint')
  if (withdrawDelay >= 2n ** 40n) throw new Json.JsonError('withdrawDelay is not of 40 bits')
  return {
    payer: Json.read(json, 'payer', 'address'),
    payerAuthorizer: Json.read(json, 'payerAuthorizer', 'address'),
    receiver: Json.read(json, 'receiver', 'address'),
    receiverAuthorizer: Json.read(json, 'receiverAuthorizer', 'address'),
    token: Json.read(json, 'token', 'address'),
    withdrawDelay: Number(withdrawDelay),
    salt: Json.read(json, 'salt', 'word'),
  }
}

function readDeposit(
  json: Json.JsonObject,
  voucher: Channel.Voucher,
): { deposit: Channel.Deposit; fault?: Fault | undefined } {
  const amountAtomic = Json.read(json, 'amount', 'uint128')
  const authorization = Json.read(json, 'authorization', 'object')
  const eip3009 = Json.optional(authorization, 'erc3009Authorization', 'object')
  const permit = Json.optional(authorization, 'permit2Authorization', 'object')
  if (eip3009 !== undefined && permit === undefined) {
    const by = {
      method: 'eip3009' as const,
      validAfter: Json.read(eip3009, 'validAfter', 'uint'),
      validBefore: Json.read(eip3009, 'validBefore', 'uint'),
      salt: Json.read(eip3009, 'salt', 'wordOrUint'),
      signature: Json.read(eip3009, 'signature', 'signature'),
    }
    return { deposit: { amountAtomic, by } }
  }
  if (permit !== undefined && eip3009 === undefined) {
    const by = {
      method: 'permit2' as const,
      nonce: Json.read(permit, 'nonce', 'wordOrUint'),
      deadline: Json.read(permit, 'deadline', 'uint'),
      signature: Json.read(permit, 'signature', 'signature'),
    }
    return { deposit: { amountAtomic, by }, fault: faultOfPermit(permit, voucher, amountAtomic) }
  }
  const detail = 'authorization needs either erc3009Authorization or permit2Authorization'
  throw new Json.JsonError(detail)
}

/** The members that a payload repeats: only the config and the amount of the deposit count. */
function faultOfPermit(
  permit: Json.JsonObject,
  { channelId, config }: Channel.Voucher,
  amountAtomic: bigint,
): Fault | undefined {
  const from = Json.read(permit, 'from', 'address')
  const spender = Json.read(permit, 'spender', 'address')
  const permitted = Json.read(permit, 'permitted', 'object')
  const token = Json.read(permitted, 'token', 'address')
  const amount = Json.read(permitted, 'amount', 'uint')
  const witness = Json.read(Json.read(permit, 'witness', 'object'), 'channelId', 'word')
  if (from !== config.payer) {
    const detail = `permit2Authorization.from must be channelConfig.payer, ${config.payer}.`
    return fault('invalid_batch_settlement_evm_permit2_invalid_signature', detail)
  }
  if (spender !== Channel.permit2CollectorAddress) {
    const detail = `permit2Authorization.spender must be ${Channel.permit2CollectorAddress}.`
    return fault('invalid_batch_settlement_evm_permit2_invalid_spender', detail)
  }
  if (token !== config.token) {
    const detail = Explanation.otherToken(token, config.token)
    return fault('invalid_batch_settlement_evm_token_mismatch', detail)
  }
  if (amount !== amountAtomic) {
    const detail = `permitted.amount is ${amount}, and deposit.amount is ${amountAtomic}.`
    return fault('invalid_batch_settlement_evm_permit2_amount_mismatch', detail)
  }
  if (witness !== channelId) {
    const detail = 'permit2Authorization.witness.channelId must be voucher.channelId.'
    return fault('invalid_batch_settlement_evm_channel_id_mismatch', detail)
  }
  return undefined
}

/** The terms of an offer for channels. */
type Expected = {
  chainId: number
  payTo: Address
  asset: Address
  receiverAuthorizer: Address | undefined
  /** Seconds; undefined: any. */
  withdrawDelay: number | undefined
}

/** Whether a channel has these terms, and the id of its config. */
export function checkConfig(
  { channelId, config }: Pick<Channel.Voucher, 'channelId' | 'config'>,
  { chainId, payTo, asset, receiverAuthorizer, withdrawDelay }: Expected,
): Fault | undefined {
  const id = Channel.idOf(config, chainId)
  if (id !== channelId) {
    const detail = `voucher.channelId is ${channelId}, and that of channelConfig is ${id}.`
    return fault('invalid_batch_settlement_evm_channel_id_mismatch', detail)
  }
  const { receiver, token } = config
  if (receiver !== payTo) return unlike('receiver', receiver, `payTo is ${payTo}`)
  if (config.receiverAuthorizer !== receiverAuthorizer) {
    const expected = `that of extra is ${receiverAuthorizer ?? 'missing'}`
    return unlike('receiverAuthorizer', config.receiverAuthorizer, expected)
  }
  if (token !== asset) return unlike('token', token, `the asset is ${asset}`)
  if (withdrawDelay !== undefined && config.withdrawDelay !== withdrawDelay) {
    const expected = `that of extra is ${withdrawDelay} s`
    return unlike('withdrawDelay', `${config.withdrawDelay} s`, expected)
  }
  const { withdrawDelayMin, withdrawDelayMax } = Channel
  if (config.withdrawDelay < withdrawDelayMin || config.withdrawDelay > withdrawDelayMax) {
    const detail = `channelConfig.withdrawDelay must be ${withdrawDelayMin} to ${withdrawDelayMax} s.`
    return fault('invalid_batch_settlement_evm_withdraw_delay_out_of_range', detail)
  }
  return undefined
}

const mismatches = {
  receiver: 'invalid_batch_settlement_evm_receiver_mismatch',
  receiverAuthorizer: 'invalid_batch_settlement_evm_receiver_authorizer_mismatch',
  token: 'invalid_batch_settlement_evm_token_mismatch',
  withdrawDelay: 'invalid_batch_settlement_evm_withdraw_delay_mismatch',
} as const

function unlike(member: keyof typeof mismatches, given: string, expected: string): Fault {
  return fault(mismatches[member], `channelConfig.${member} is ${given}, and ${expected}.`)
}

/** Whether a deposit is by the method of the offer; without one it is right. */
export function checkMethod(
  { deposit }: Pick<Channel.Voucher, 'deposit'>,
  method: TransferMethod,
): Fault | undefined {
  if (deposit === undefined || deposit.by.method === method) return undefined
  return method === 'permit2'
    ? fault(
        'invalid_batch_settlement_evm_payload_type',
        'deposit.authorization needs permit2Authorization: this asset is deposited by Permit2.',
      )
    : fault(
        'invalid_batch_settlement_evm_erc3009_authorization_required',
        'deposit.authorization needs erc3009Authorization: this asset is deposited by EIP-3009.',
      )
}

/** Whether a voucher has a key that signs it: a contract could deny its signature at the claim. */
export function checkAuthorizer({ config }: Pick<Channel.Voucher, 'config'>): Fault | undefined {
  if (config.payerAuthorizer !== zero) return undefined
  const detail = 'channelConfig.payerAuthorizer must be the address of a key, which signs vouchers.'
  return fault('invalid_batch_settlement_evm_voucher_signature', detail)
}

/** EIP-712 digest that the payer signs for a deposit. */
export function depositDigest(
  channel: { config: Channel.Config; chainId: number },
  { amountAtomic, by }: Channel.Deposit,
  asset: Pick<Asset, 'eip712'>,
): Uint8Array {
  return by.method === 'permit2'
    ? Channel.permitDigest(channel, { amountAtomic, by })
    : receiveDigest(Channel.authorizationOf(channel, { amountAtomic, by }), asset)
}

/**
 * Whether the time of a deposit is right at `now` (unix ms), with the time that its transaction needs.
 */
export function checkWindow({ by }: Channel.Deposit, now: number): Fault | undefined {
  const isPermit = by.method === 'permit2'
  const window = isPermit ? { ...by, validAfter: 0n, validBefore: by.deadline } : by
  return checkTime(window, now, windowCodes[by.method])
}

const early = 'invalid_batch_settlement_evm_payload_authorization_valid_after'

const windowCodes = {
  eip3009: ['invalid_batch_settlement_evm_payload_authorization_valid_before', early],
  permit2: ['invalid_batch_settlement_evm_permit2_deadline_expired', early],
} as const
