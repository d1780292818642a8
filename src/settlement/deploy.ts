import * as Multicall from '../chain/multicall'
import * as Counterfactual from '../protocol/Counterfactual'
import * as Transfer from '../protocol/Transfer'
import type { ChainState } from './context'

/** What deploying a wallet may use beside the transfer itself. */
export const deployGas = 1_000_000n

/** How a transfer comes that must deploy its payer first; undefined for all others. */
function wrapperOf({ method, signature }: Signed): Counterfactual.Counterfactual | undefined {
  return method === 'eip3009' ? Counterfactual.parse(signature) : undefined
}

type Signed = Pick<Transfer.Transfer, 'method' | 'signature'>

/** Whether the transfer names a factory that may be called for it. */
export function isAllowed({ factories }: Pick<ChainState, 'factories'>, transfer: Signed): boolean {
  const wrapper = wrapperOf(transfer)
  return wrapper !== undefined && factories.has(wrapper.factory)
}

/** The factory that the transfer names, if any. */
export function factoryOf(transfer: Signed): string | undefined {
  return wrapperOf(transfer)?.factory
}

/** Whether the settling call deploys the payer. */
export function deploys(transfer: Signed): boolean {
  return wrapperOf(transfer) !== undefined
}

/**
 * The settling call. When the transfer still has its ERC-6492 wrapper, Multicall3 first calls the
 * factory: a stranger's bytes never come from the account of a relayer. The deployment may fail, as it
 * does when somebody was faster; the transfer must not.
 */
export function callOf(transfer: Transfer.Transfer): Multicall.Call {
  const wrapper = wrapperOf(transfer)
  if (!wrapper) return Transfer.call(transfer)
  const { factory, data, signature } = wrapper
  return Multicall.aggregate([
    { to: factory, data },
    { ...Transfer.call({ ...transfer, signature }), isRequired: true },
  ])
}
