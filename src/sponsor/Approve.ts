import type * as Transaction from '../chain/transaction'
import * as Abi from '../protocol/Abi'
import * as Permit from '../protocol/Permit'
import type { Fault } from '../protocol/Problem'
import type { Transfer } from '../protocol/Transfer'
import type * as Grant from './Grant'

/**
 * The approve of Permit2 that a payer signed and cannot pay for (x402
 * specs/extensions/erc20_gas_sponsoring.md). The bytes must fix everything that the payer is funded
 * for. Another target, a value or a higher price would spend the funds on something else.
 */

/** Codes are the reference facilitator's; additional codes have the same form. */
type Code = `erc20_approval_${string}`

const selector = Abi.selector('approve(address,uint256)')
/** Selector and two words. */
const dataDigits = 2 + 8 + 128
/** Gas of every approve of the reference client. */
const usualGas = 70_000n

/**
 * Checks every field that needs no chain: first in the reference's order, then those that the
 * reference does not check. `parsed` is undefined when the bytes are no such transaction.
 */
export function check(
  parsed: Transaction.Parsed | undefined,
  transfer: Pick<Transfer, 'chainId' | 'asset' | 'payer' | 'amountAtomic'>,
): Fault | undefined {
  if (parsed === undefined) {
    const detail = 'It is not a canonical, signed type 2 transaction without an access list.'
    return fault('erc20_approval_tx_parse_failed', detail)
  }
  if (parsed.to !== transfer.asset) {
    return fault('erc20_approval_tx_wrong_target', `to must be the asset, ${transfer.asset}.`)
  }
  if (parsed.data.slice(2, 10) !== selector) {
    return fault('erc20_approval_tx_wrong_selector', 'It does not call approve.')
  }
  const words = parsed.data.slice(10)
  const spender = Abi.addressAt(words, 0)
  const amount = Abi.uintAt(words, 1)
  if (parsed.data.length !== dataDigits || spender === undefined || amount === undefined) {
    return fault('erc20_approval_tx_invalid_calldata', 'The calldata is not exactly approve.')
  }
  if (spender !== Permit.permit2Address) {
    return fault('erc20_approval_tx_wrong_spender', `spender must be ${Permit.permit2Address}.`)
  }
  if (amount < transfer.amountAtomic) {
    return fault('erc20_approval_tx_amount_too_low', 'It approves less than is paid.')
  }
  if (parsed.signer === undefined) {
    return fault('erc20_approval_tx_invalid_signature', 'The signature is not canonical.')
  }
  if (parsed.signer !== transfer.payer) {
    return fault('erc20_approval_tx_signer_mismatch', 'The payer has not signed it.')
  }
  if (parsed.chainId !== transfer.chainId) {
    return fault('erc20_approval_tx_wrong_chain', `chainId must be ${transfer.chainId}.`)
  }
  if (parsed.valueWei !== 0n) {
    return fault('erc20_approval_tx_value_not_zero', 'value must be 0.')
  }
  if (parsed.maxTipWei > parsed.maxFeeWei) {
    return fault('erc20_approval_tx_wrong_fee', 'The tip is above the fee.')
  }
  return undefined
}

/** Whether gas and fees let it be included now. */
export function checkEnough(parsed: Transaction.Parsed, price: Grant.Price): Fault | undefined {
  if (parsed.gasLimit < price.gas) {
    return fault('erc20_approval_tx_gas_too_low', `gas must be at least ${price.gas}.`)
  }
  if (parsed.maxFeeWei < price.baseFeeWei) {
    const detail = `maxFeePerGas must be at least ${price.baseFeeWei}.`
    return fault('erc20_approval_tx_fee_too_low', detail)
  }
  return undefined
}

/**
 * Whether gas and fees are at most what clients request. Once funded the money belongs to the
 * payer, and nothing forces the payer to send this transaction.
 */
export function checkModest(parsed: Transaction.Parsed, price: Grant.Price): Fault | undefined {
  const { gas, baseFeeWei, tipWei } = price
  const gasMax = gas + gas / 4n > usualGas ? gas + gas / 4n : usualGas
  if (parsed.gasLimit > gasMax) {
    return fault('erc20_approval_tx_gas_too_high', `gas must be at most ${gasMax}.`)
  }
  // Clients bid a base fee a fifth higher, and it may have sunk a little since. A higher sum would
  // exceed the cost of moving the asset to the next address and collecting the grant.
  const feeMax = (baseFeeWei * 13n) / 10n + tipWei
  if (parsed.maxFeeWei > feeMax) {
    return fault('erc20_approval_tx_fee_too_high', `maxFeePerGas must be at most ${feeMax}.`)
  }
  return undefined
}

/** The most that it can cost the payer, wei. */
export function worstCostWei(parsed: Transaction.Parsed): bigint {
  return parsed.gasLimit * parsed.maxFeeWei
}

function fault(code: Code, detail: string): Fault {
  return { code, detail }
}
