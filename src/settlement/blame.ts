import type { Address, Hex } from 'viem'
import type { TransactionRow } from '../../db/schema'
import * as Multicall from '../chain/multicall'
import * as Permit2 from '../chain/permit2'
import * as Receipt from '../chain/receipt'
import * as Token from '../chain/token'
import * as Permit from '../protocol/Permit'
import type { Transfer } from '../protocol/Transfer'
import { type Code, splitCode, withCode } from './code'
import type { Context, Rail } from './context'
import * as Gas from './gas'
import type { Payment } from './Payment'
import * as Verify from './verify'

/** Payers that may not share are remembered up to this number, the newest. */
const unsharedMax = 10_000

/** A transaction that was included and did not pay all that it carries. */
export type Failed = {
  included: TransactionRow
  receipt: Receipt.Receipt
  /** All that it carries. */
  members: readonly Payment[]
  unpaid: readonly Payment[]
  /** What its payers' simulation saw behind them; undefined: not known. */
  code: Code | undefined
}

/**
 * Payments that cost gas by their payer's fault, with the code that is to blame beside it: `none` where
 * the money explains the failure, so that nobody locks others of the same code out by moving money.
 */
export type Blamed = ReadonlyMap<string, Code | undefined>

/**
 * Those to blame. Alone, it is the payer. In a batch, one that has code now (EIP-7702), whose money or
 * allowance left, or whose nonce is used: each passed a simulation a moment before. A member that is
 * unpaid where gas was left is to blame as well. They never share a transaction again. Never rejects.
 */
export async function findBlamed(context: Context, rail: Rail, failed: Failed): Promise<Blamed> {
  const { included, members, unpaid } = failed
  const [first] = unpaid
  // An empty transaction is our doing.
  if (included.kind === 'cancel' || !first) return new Map()
  const looks = await lookAt(rail, failed, context.now())
  const codeOf = ({ id }: Payment) => {
    const look = looks.get(id)
    // Not what is there at the end of the block: that may be anybody's code, taken on behind the
    // transaction so that others are blamed.
    return look?.isMoney && !hasBurnt(failed) ? 'none' : (failed.code ?? look?.code)
  }
  if (members.length === 1) return new Map([[first.id, codeOf(first)]])
  const isPayers = hadGas(rail, failed) && isOnesOwn(failed)
  let blamed: readonly Payment[] = unpaid.filter(
    ({ id }) => isPayers || looks.get(id)?.isChanged === true,
  )
  if (blamed.length === 0) blamed = await findActive(rail, failed)
  for (const { transfer } of blamed) keepApart(rail, transfer.payer)
  context.log('batch-failed', {
    network: rail.network.id,
    transaction: failed.receipt.hash,
    unpaid: unpaid.length,
    blamed: blamed.map(({ transfer }) => transfer.payer),
  })
  return new Map(blamed.map((payment) => [payment.id, codeOf(payment)]))
}

/** A transfer that fails uses a part of its limit; code that burns uses nearly all. */
function hasBurnt({ included, receipt }: Failed): boolean {
  return receipt.gasUsed * 2n >= included.gasLimit
}

function keepApart({ unshared }: Rail, payer: Address): void {
  unshared.delete(payer)
  unshared.add(payer)
  const [oldest] = unshared
  if (unshared.size > unsharedMax && oldest !== undefined) unshared.delete(oldest)
}

/**
 * Whether no member failed for want of gas. What is left only shrinks while calls follow each other;
 * refunds, at most a fifth, are taken off at the end (EIP-3529).
 */
function hadGas(rail: Rail, { included, receipt, unpaid }: Failed): boolean {
  if (!receipt.success) return false
  const left = included.gasLimit - (receipt.gasUsed * 5n) / 4n
  return unpaid.every(({ transfer }) => left >= Gas.limitOf(rail, transfer))
}

/** Where all members of several payers fail alike, it is the token that refuses. */
function isOnesOwn({ members, unpaid }: Failed): boolean {
  if (unpaid.length < members.length) return true
  return new Set(unpaid.map(({ transfer }) => transfer.payer)).size === 1
}

type Look = {
  code: Code | undefined
  isChanged: boolean
  /** Nonce, balance, allowance or time explain why it did not pay. */
  isMoney: boolean
}

/** What the chain says of each payment at the end of the block; empty where it does not tell. */
async function lookAt(
  rail: Rail,
  { unpaid, receipt }: Failed,
  now: number,
): Promise<ReadonlyMap<string, Look>> {
  const owed = new Map<Address, bigint>()
  for (const { transfer } of unpaid) {
    owed.set(transfer.payer, (owed.get(transfer.payer) ?? 0n) + transfer.amountAtomic)
  }
  const looks = await Promise.all(
    unpaid.map(async ({ id, transfer }): Promise<[string, Look][]> => {
      const answer = await readMember(rail, transfer, tagOf(receipt))
      if (!answer) return []
      const { code, used, balance, allowance } = answer
      const isShort = balance !== undefined && balance < (owed.get(transfer.payer) ?? 0n)
      const isRevoked = allowance !== undefined && allowance < transfer.amountAtomic
      const isMoved = used === true || isShort || isRevoked
      const isOver = transfer.validBefore <= BigInt(Math.ceil(now / 1000))
      return [[id, { code, isChanged: code !== 'none' || isMoved, isMoney: isMoved || isOver }]]
    }),
  )
  return new Map(looks.flat())
}

/** Nonce, balance, allowance and code of a member in one call. */
async function readMember(rail: Rail, transfer: Transfer, tag: Hex) {
  const { asset, payer } = transfer
  const isPermit = transfer.method === 'permit2'
  const calls = [
    Verify.nonceCall(transfer),
    Token.balanceOf(asset, payer),
    ...(isPermit
      ? [Token.allowance(asset, payer, Permit.permit2Address), Permit2.proxyPermit2]
      : []),
  ]
  const data = withCode(payer, Multicall.aggregate(calls))
  try {
    const split = splitCode(await rail.client.call('eth_call', [{ data }, tag]))
    const results = split && Multicall.parseResults(split.data, calls.length)
    if (!split || !results) return undefined
    const [nonce, balance, allowance] = results.map(({ success, data: word }) =>
      success ? Token.toUint(word) : undefined,
    )
    const used = Verify.isUsed(transfer, nonce)
    return { code: split.code, used, balance, allowance: isPermit ? allowance : undefined }
  } catch {
    return undefined
  }
}

/**
 * Members whose account did something in the block: it delegated and took that back, or moved its
 * money and got it back. Asked where all gas was burnt and nothing else shows by whom.
 */
async function findActive(rail: Rail, { unpaid, receipt }: Failed): Promise<readonly Payment[]> {
  if (receipt.blockNumber === 0n) return []
  const tags = [`0x${(receipt.blockNumber - 1n).toString(16)}`, tagOf(receipt)]
  const counts = new Map<Address, Promise<boolean>>()
  const isActive = async (payer: Address) => {
    try {
      const [before, after] = await Promise.all(
        tags.map((tag) => rail.client.call('eth_getTransactionCount', [payer, tag])),
      )
      return Receipt.isHex(before) && Receipt.isHex(after) && BigInt(after) > BigInt(before)
    } catch {
      return false
    }
  }
  for (const { transfer } of unpaid) {
    if (!counts.has(transfer.payer)) counts.set(transfer.payer, isActive(transfer.payer))
  }
  const active = await Promise.all(unpaid.map(({ transfer }) => counts.get(transfer.payer)))
  return unpaid.filter((_, index) => active[index] === true)
}

function tagOf({ blockNumber }: Receipt.Receipt): Hex {
  return `0x${blockNumber.toString(16)}`
}
