import type { Address, Hex } from 'viem'
import * as Json from './Json'
import type { Offer } from './Offer'
import * as Permit from './Permit'
import { type Fault, isFault } from './Problem'
import type { Transfer } from './Transfer'
import { windowMinSeconds } from './Transfer'
import { type Declaration, infoOf } from './X402'

/**
 * x402 extensions by which a payer without native gas approves Permit2: by an EIP-2612 permit in
 * the settling call, or by a signed approve that another party funds and sends.
 * specs/extensions/eip2612_gas_sponsoring.md, erc20_approval_gas_sponsoring.md
 */

export const permitName = 'eip2612GasSponsoring'
export const approvalName = 'erc20ApprovalGasSponsoring'

/** Declarations of a 402 for its offers, as small as clients accept them. */
export function declarations(
  offers: readonly Offer[],
  takesApprovals: boolean,
): readonly Declaration[] {
  const assets = offers.map(({ network }) => network.asset)
  const sponsored = assets.filter(({ transfer }) => transfer.includes('permit2'))
  const declare = (name: string) => ({ name, info: { version: '1' }, schema: {} })
  return [
    ...(sponsored.some(({ eip2612 }) => eip2612) ? [declare(permitName)] : []),
    ...(takesApprovals && sponsored.length > 0 ? [declare(approvalName)] : []),
  ]
}

/** What the payer added to its payment. */
export type Sponsored = {
  permit2612: Transfer['permit2612']
  /** Raw transaction of an approve, not parsed. */
  approval: Hex | undefined
}

export const nothing: Sponsored = { permit2612: undefined, approval: undefined }

type Options = {
  /** Unix ms. */
  now: number
  /** Whether this service sends approves. Otherwise that extension is not read. */
  takesApprovals: boolean
}

const what = 'The extension'

type Approved = Pick<Transfer, 'method' | 'payer' | 'asset' | 'amountAtomic' | 'upto' | 'voucher'>

/**
 * Reads what an extension adds to a Permit2 transfer, or a permit to a deposit by Permit2. An extension that only echoes the server's
 * declaration adds nothing. Faults are those of the reference facilitator, in its order.
 */
export function read(
  extensions: Json.JsonObject | undefined,
  transfer: Approved,
  options: Options,
): Sponsored | Fault {
  const { method, voucher } = transfer
  const isDeposit = voucher?.deposit?.by.method === 'permit2'
  if (method !== 'permit2' && !isDeposit) return nothing
  const permit = infoOf(extensions, permitName)
  if (permit !== undefined && isComplete(permit, permitMembers)) {
    const code = 'invalid_eip2612_extension_format'
    return Json.wellFormed(code, what, () => readPermit(permit, transfer, options.now))
  }
  const approval = isDeposit ? undefined : infoOf(extensions, approvalName)
  if (options.takesApprovals && approval && isComplete(approval, approvalMembers)) {
    const code = 'invalid_erc20_approval_extension_format'
    return Json.wellFormed(code, what, () => readApproval(approval, transfer))
  }
  return nothing
}

/** The transfer, or its deposit, with the payer's permit, unless there is none or a fault in it. */
export function withPermit<T extends Pick<Transfer, 'voucher'>>(
  transfer: T,
  sponsored: Sponsored | Fault,
): T {
  const { permit2612 } = isFault(sponsored) ? nothing : sponsored
  if (permit2612 === undefined) return transfer
  const { voucher } = transfer
  const { deposit } = voucher ?? {}
  if (voucher === undefined || deposit?.by.method !== 'permit2') return { ...transfer, permit2612 }
  const by = { ...deposit.by, permit2612 }
  return { ...transfer, voucher: { ...voucher, deposit: { ...deposit, by } } }
}

const common = ['from', 'asset', 'spender', 'amount', 'version']
const permitMembers = [...common, 'nonce', 'deadline', 'signature']
const approvalMembers = [...common, 'signedTransaction']

function isComplete(info: Json.JsonObject, members: readonly string[]): boolean {
  return members.every((name) => {
    const value = Json.member(info, name)
    return value !== undefined && value !== '' && value !== 0 && value !== false
  })
}

function readPermit(info: Json.JsonObject, transfer: Approved, now: number): Sponsored | Fault {
  const names = readNames(info)
  const valueAtomic = Json.read(info, 'amount', 'uint')
  const deadline = Json.read(info, 'deadline', 'uint')
  const signature = Json.read(info, 'signature', 'signature')
  Json.read(info, 'nonce', 'uint')
  // The proxy passes v, r and s.
  if (signature.length !== 132) throw new Json.JsonError('signature is not of 65 bytes')
  const fault = checkNames(names, transfer, 'eip2612')
  if (fault !== undefined) return fault
  if (deadline < BigInt(Math.floor(now / 1000)) + windowMinSeconds) {
    return { code: 'eip2612_deadline_expired', detail: 'The permit has expired or is about to.' }
  }
  const { amountAtomic, upto, voucher } = transfer
  // The proxy of `upto` compares it with the ceiling and not with the charge, the collector of
  // deposits with the deposit.
  if (valueAtomic !== (voucher?.deposit?.amountAtomic ?? upto?.ceilingAtomic ?? amountAtomic)) {
    const detail = 'The permit is not for exactly the amount that is signed.'
    const ofChannel = 'invalid_batch_settlement_evm_eip2612_amount_mismatch'
    return { code: voucher === undefined ? 'permit2_2612_amount_mismatch' : ofChannel, detail }
  }
  return { permit2612: { valueAtomic, deadline, signature }, approval: undefined }
}

/** `0x` and a transaction. An approve is far shorter than this limit. */
const transactionPattern = /^0x(?:[0-9a-fA-F]{2}){1,1024}$/

function readApproval(info: Json.JsonObject, transfer: Approved): Sponsored | Fault {
  const names = readNames(info)
  Json.read(info, 'amount', 'uint')
  const raw = Json.read(info, 'signedTransaction', 'text')
  if (!transactionPattern.test(raw)) throw new Json.JsonError('signedTransaction is not hex')
  const fault = checkNames(names, transfer, 'erc20_approval')
  if (fault !== undefined) return fault
  return { permit2612: undefined, approval: raw.toLowerCase() as Hex }
}

type Names = { from: Address; asset: Address; spender: Address }

function readNames(info: Json.JsonObject): Names {
  if (!/^\d+(\.\d+)*$/.test(Json.read(info, 'version', 'text'))) {
    throw new Json.JsonError('version is not a version')
  }
  return {
    from: Json.read(info, 'from', 'address'),
    asset: Json.read(info, 'asset', 'address'),
    spender: Json.read(info, 'spender', 'address'),
  }
}

function checkNames(
  { from, asset, spender }: Names,
  transfer: Approved,
  prefix: string,
): Fault | undefined {
  if (from !== transfer.payer) {
    return { code: `${prefix}_from_mismatch`, detail: 'The extension names another payer.' }
  }
  if (asset !== transfer.asset) {
    return { code: `${prefix}_asset_mismatch`, detail: 'The extension names another asset.' }
  }
  if (spender !== Permit.permit2Address) {
    const detail = `The spender of the extension must be ${Permit.permit2Address}.`
    return { code: `${prefix}_spender_not_permit2`, detail }
  }
  return undefined
}
