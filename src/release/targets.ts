/** A system that gets an executable. */
export type Target = {
  /** Such as linux-x64-musl. */
  name: string
  /** File name of the executable. */
  file: string
  /** Value for `bun build --target`. */
  compile: string
  /** npm package with the runtime of this system. */
  package: string
  /** Its file inside that package. */
  executable: string
  /**
   * The hash that the registry publishes for the package at `runtimeVersion`: sha512 of its
   * archive.
   */
  integrity: string
  format: 'elf' | 'mach-o' | 'pe'
  machine: 'x64' | 'arm64'
  /** The loader that an ELF file asks for. */
  loader?: string
}

/** The version of the runtime that the hashes below belong to. */
export const runtimeVersion = '1.4.4'

/**
 * Every system of a release. After an update of the runtime, `npm view PACKAGE@VERSION
 * dist.integrity` prints the new hashes. They are stored here, so that a changed archive is
 * refused although the registry would vouch for it.
 */
const systems: readonly Omit<Target, 'file' | 'compile' | 'executable'>[] = [
  {
    name: 'linux-x64',
    package: '@oven/bun-linux-x64',
    integrity:
      'sha512-CHbbkmHVM28T1GFq+6GL4Ao4ujwwYwj1CxFFwEFzLanPfNsId9AhbIP0Q4reWuWBkGimUkoQygrK7Rgjtj3vog==',
    format: 'elf',
    machine: 'x64',
    loader: '/lib64/ld-linux-x86-64.so.2',
  },
  {
    name: 'linux-arm64',
    package: '@oven/bun-linux-aarch64',
    integrity:
      'sha512-ZTVtpf9zmHSBVPX1sBwe5agGb/rN34yPGg/Hby8e2Ax2uCUA2URZKlZH7qLntK7qaFJCMXh9v0GWNYN2zINz1w==',
    format: 'elf',
    machine: 'arm64',
    loader: '/lib/ld-linux-aarch64.so.1',
  },
  {
    name: 'linux-x64-musl',
    package: '@oven/bun-linux-x64-musl',
    integrity:
      'sha512-lEEjNOJJrbGZu2NVcPI4uXdILcpspezWkA8R/Jr0RCGhM6zQd0Y7JBIIKNAmbX59EeWpeEz7Q78iLbpcAUypUA==',
    format: 'elf',
    machine: 'x64',
    loader: '/lib/ld-musl-x86_64.so.1',
  },
  {
    name: 'linux-arm64-musl',
    package: '@oven/bun-linux-aarch64-musl',
    integrity:
      'sha512-QFd0P+mHJxbZFbUla4MgiE5OwxysHaUIYxL2pPNkpWtaI7v4ShOpr8OhBmsuyB0xn5rv/ZJnPsj2y8+bB9+g/A==',
    format: 'elf',
    machine: 'arm64',
    loader: '/lib/ld-musl-aarch64.so.1',
  },
  {
    name: 'darwin-arm64',
    package: '@oven/bun-darwin-aarch64',
    integrity:
      'sha512-zW/hxwc8sJAILGwB5eTC4i48ouGXf0V4lrxmEOk3JIE6JkYVW1TZh1E2pIempqsezgW1sckTIIDudFON8bJ2Mw==',
    format: 'mach-o',
    machine: 'arm64',
  },
  {
    name: 'windows-x64',
    package: '@oven/bun-windows-x64',
    integrity:
      'sha512-a3LNctBVO8PjePsFZfwDleF2JXYf2BfQ1u/PLRnBDLnC2Riml+4+LgJpKj4xRGhB92KweGyQI5PXaTkP9qypMQ==',
    format: 'pe',
    machine: 'x64',
  },
]

/** Every target of a release. */
export const targets: readonly Target[] = systems.map((system) => {
  const end = system.format === 'pe' ? '.exe' : ''
  const { name } = system
  const compile = `bun-${name}`
  return { ...system, file: `turnpike-${name}${end}`, compile, executable: `bin/bun${end}` }
})
