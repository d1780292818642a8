import type { Abi, Address, Hex } from 'viem'
import generated from './artifacts.generated.json'
import vendored from './vendored.json'

/** A compiled contract: creation and runtime bytecode. */
export type Artifact = { abi: Abi; bytecode: Hex; deployedBytecode: Hex }

/** Contracts of this folder, compiled by build.ts. */
export const { Stablecoin, StockRegistry, StockToken, PriceFeed, LiquidityProvider } =
  generated as unknown as Record<keyof typeof generated, Artifact>

/** A contract of others at the address that its salt gives it. Creation bytecode. */
type Deployed = { address: Address; salt: Hex; bytecode: Hex }

/** The real Permit2, and the real proxies of the schemes `exact` and `upto`. */
export const deployed = [vendored.permit2, vendored.exactProxy, vendored.uptoProxy] as Deployed[]

/** The real Multicall3. Creation bytecode. */
export const multicall3 = vendored.multicall3 as { bytecode: Hex }
