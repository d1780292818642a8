import type { Address, Hex } from 'viem'
import type { Payment } from '../../../db/Payment'
import type { TransactionRow } from '../../../db/schema'
import * as Multicall from '../../chain/multicall'
import * as Permit2 from '../../chain/permit2'
import * as Receipt from '../../chain/receipt'
import * as Token from '../../chain/token'
import * as Permit from '../../protocol/Permit'
import type { Transfer } from '../../protocol/Transfer'
import { callInOneBlock, checkTransfer, uintOf } from '../read/simulate'
import * as Gas from '../state/gas-budget'
import type { ChainState, Conclusion, Context } from '../state/state'

/*
 * Whether a payer caused that its payment failed. A node that is behind, a paused token and a payee that
 * the token blocks are not the doing of a payer.
 */

/** Most payers that are kept out of shared transactions; the oldest entries are dropped. */
const unsharedMax = 10_000

/** A transaction that was included and did not pay all of its members. */
type Failed = {
  included: TransactionRow
  receipt: Receipt.Receipt
  /** All payments in the transaction. */
  members: readonly Payment[]
  unpaid: readonly Payment[]
  /** The payer's code as the simulation read it. */
  code: Multicall.AccountCode
}

/**
 * Attributes a failure to the payments whose payers caused it. In a lone transaction that is the
 * payer. In a batch it is a payer that has code now (EIP-7702), or one whose money, allowance or
 * nonce has changed: each passed a simulation just before. A member that failed although gas was
 * left also counts. These payers never share a transaction again. Never rejects.
 */
export async function attributeFailure(
  context: Context,
  chain: ChainState,
  failed: Failed,
): Promise<Conclusion['attributed']> {
  const { included, members, unpaid } = failed
  const [first] = unpaid
  // This service itself sends empty transactions, so no payer caused the failure.
  if (included.kind === 'cancel' || !first) return new Map()
  const states = await readMembers(chain, failed, context.now())
  const codeOf = ({ id }: Payment): Multicall.AccountCode => {
    const state = states.get(id)
    if (state?.isMoney && !usedMostGas(failed)) return 'eoa'
    // Prefer the simulated code to that at the end of the block. A payer can delegate to the code
    // of others after the transaction, so that the failure counts against them.
    return failed.code === 'unknown' ? (state?.code ?? 'unknown') : failed.code
  }
  const byPayers = unpaid.filter(({ id }) => states.get(id)?.isByToken !== true)
  if (byPayers.length === 0) return new Map()
  if (members.length === 1) return new Map([[first.id, codeOf(first)]])
  if (usedMostGas(failed)) {
    // Only the unpaid share of the cost is wasted.
    const wei = (failed.receipt.spentWei * BigInt(unpaid.length)) / BigInt(members.length)
    Gas.addWasted(context, chain, first.purpose.product, wei)
  }
  // When all members of several payers fail, the token refuses.
  const payers = new Set(unpaid.map(({ transfer }) => transfer.payer))
  const isPayers = hadGas(chain, failed) && (unpaid.length < members.length || payers.size === 1)
  let attributed: readonly Payment[] = byPayers.filter(
    ({ id }) => isPayers || states.get(id)?.isChanged === true,
  )
  if (attributed.length === 0) attributed = await findActive(chain, failed)
  for (const { transfer } of attributed) excludeFromShared(chain, transfer.payer)
  context.log('batch-failed', {
    network: chain.network.id,
    transaction: failed.receipt.hash,
    unpaid: unpaid.length,
    attributed: attributed.map(({ transfer }) => transfer.payer),
  })
  return new Map(attributed.map((payment) => [payment.id, codeOf(payment)]))
}

/**
 * Whether at least half of the gas limit was used. A failing transfer uses less, malicious code
 * nearly all.
 */
function usedMostGas({ included, receipt }: Failed): boolean {
  return receipt.gasUsed * 2n >= included.gasLimit
}

function excludeFromShared({ known: { unshared } }: ChainState, payer: Address): void {
  unshared.delete(payer)
  unshared.add(payer)
  const [oldest] = unshared
  if (unshared.size > unsharedMax && oldest !== undefined) unshared.delete(oldest)
}

/**
 * Whether every member had enough gas. The remaining gas only shrinks from call to call. Refunds,
 * at most a fifth, are subtracted at the end (EIP-3529).
 */
function hadGas(chain: ChainState, { included, receipt, unpaid }: Failed): boolean {
  if (!receipt.success) return false
  const left = included.gasLimit - (receipt.gasUsed * 5n) / 4n
  return unpaid.every(({ transfer }) => left >= Gas.limitOfMember(chain, transfer))
}

type MemberState = {
  code: Multicall.AccountCode
  isChanged: boolean
  /** Nonce, balance, allowance or time explain why it did not pay. */
  isMoney: boolean
  /** The token refuses everybody's transfers to the payee. */
  isByToken: boolean
}

/** State of each payment at the end of the block; empty when the node does not answer. */
async function readMembers(
  chain: ChainState,
  failed: Failed,
  now: number,
): Promise<ReadonlyMap<string, MemberState>> {
  const owed = new Map<Address, bigint>()
  for (const { transfer } of failed.unpaid) {
    owed.set(transfer.payer, (owed.get(transfer.payer) ?? 0n) + transfer.amountAtomic)
  }
  const states = await Promise.all(
    failed.unpaid.map(async ({ id, transfer }): Promise<[string, MemberState][]> => {
      const owedAtomic = owed.get(transfer.payer) ?? 0n
      const state = await readMember(chain, failed, transfer, { owedAtomic, now }).catch(
        () => undefined,
      )
      return state ? [[id, state]] : []
    }),
  )
  return new Map(states.flat())
}

/** Reads nonce, balance, allowance and code of a member, and what its token refuses, in one call. */
async function readMember(
  { client }: ChainState,
  { included, receipt }: Failed,
  transfer: Transfer,
  { owedAtomic, now }: { owedAtomic: bigint; now: number },
): Promise<MemberState | undefined> {
  const { asset, payer } = transfer
  const isPermit = transfer.method === 'permit2'
  const calls = [
    ...refusalCalls(transfer, included.relayer),
    Token.nonceCall(transfer),
    Token.balanceOf(asset, payer),
    ...(isPermit
      ? [Token.allowance(asset, payer, Permit.permit2Address), Permit2.proxyPermit2Of(transfer)]
      : []),
  ]
  const data = Multicall.aggregateWithCode(payer, calls)
  const answer = await client.call('eth_call', [{ data }, tagOf(receipt)])
  const read = Multicall.parseWithCode(answer, calls.length)
  if (!read) return undefined
  const { code, results } = read
  const [nonce, balance, allowance] = results.slice(3).map(uintOf)
  const isShort = balance !== undefined && balance < owedAtomic
  const isRevoked = isPermit && allowance !== undefined && allowance < transfer.amountAtomic
  const isMoved = Token.isNonceUsed(transfer, nonce) === true || isShort || isRevoked
  return {
    code,
    isChanged: code !== 'eoa' || isMoved,
    isMoney: isMoved || transfer.validBefore <= BigInt(Math.ceil(now / 1000)),
    isByToken: isOfToken(results),
  }
}

/**
 * Members whose account was active in the block. Such an account delegated and reverted that, or
 * moved its money and got it back. Read only where all gas was used and no state shows the cause.
 */
async function findActive(
  chain: ChainState,
  { unpaid, receipt }: Failed,
): Promise<readonly Payment[]> {
  if (receipt.blockNumber === 0n) return []
  const tags = [`0x${(receipt.blockNumber - 1n).toString(16)}`, tagOf(receipt)]
  const counts = new Map<Address, Promise<boolean>>()
  const isActive = async (payer: Address) => {
    try {
      const [before, after] = await Promise.all(
        tags.map((tag) => chain.client.call('eth_getTransactionCount', [payer, tag])),
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

/**
 * Whether a charge that one simulation refused passes at another node or in the next block, or cannot be
 * decided there. Never rejects.
 */
export async function mayPass(
  context: Context,
  chain: ChainState,
  transfer: Transfer,
): Promise<boolean> {
  for (const { call } of chain.client.others()) {
    const other = { ...chain, client: { ...chain.client, call } }
    const chains = new Map([[chain.network.id, other]])
    const checked = await checkTransfer({ ...context, chains }, transfer)
    if (!('kind' in checked)) return true
    if (checked.kind !== 'unavailable') break
  }
  await chain.heads.wait(2 * chain.head.blockTimeMs, context.progress.signal)
  const checked = await checkTransfer(context, transfer)
  return !('kind' in checked) || checked.kind === 'unavailable'
}

/** Whether the token refuses everybody's transfers to the payee now. Throws RpcFault or RpcError. */
export async function isRefusedByToken(chain: ChainState, transfer: Transfer): Promise<boolean> {
  const other = chain.relayers[0]?.address
  if (other === undefined) return false
  const calls = refusalCalls(transfer, other)
  const results = await callInOneBlock(chain, other, calls, { gas: 500_000n })
  return results !== undefined && isOfToken(results)
}

/** Reads for `isOfToken`. `other`: an account that the token does not block. */
function refusalCalls({ asset, payee }: Transfer, other: Address): Multicall.Call[] {
  return [Token.transfer(asset, payee, 0n), Token.transfer(asset, other, 0n), Token.paused(asset)]
}

/**
 * Whether the token refuses a transfer of nothing to the payee, because it is paused or blocks the payee. A
 * token that refuses every transfer of nothing shows neither.
 */
function isOfToken([toPayee, toOther, paused]: readonly Multicall.Result[]): boolean {
  return toPayee?.success === false && (toOther?.success === true || uintOf(paused) === 1n)
}
