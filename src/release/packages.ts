import { readFileSync } from 'node:fs'
import manifest from '../../package.json'
import type { Commit } from '../build'
import type { Entry } from './archive'
import { architectures, debianPackage, debianVersion } from './deb'
import { formula, formulaTargets } from './formula'
import { names } from './names'
import { commandPackage, executablePackage, npmFileOf, npmNameOf } from './npm'
import { image } from './oci'
import type { Target } from './targets'

/** An executable of this release. */
export type Built = { target: Target; path: string; digest: string }

/** A file that is made of executables. */
export type Package = { file: string; make: () => Promise<string | Uint8Array> }

type Options = {
  commit: Commit | undefined
  /** Where the files of the release can be downloaded, without a slash at the end. */
  url: string | undefined
  /** The files of the C library that an executable loads. */
  libraryOf: (target: Target) => Promise<Entry[]>
}

/** Every package that the executables are enough for. */
export function packagesOf(built: readonly Built[], options: Options): Package[] {
  const find = (name: string) => built.filter(({ target }) => target.name === name)
  // The packages of glibc: Debian and the image have no other C library.
  const linux = [...find('linux-x64'), ...find('linux-arm64')]
  const { commit, url, libraryOf } = options
  const digests = formulaTargets.flatMap((name) => find(name).map(({ digest }) => [name, digest]))
  return [
    { file: npmFileOf(names.package), make: async () => commandPackage() },
    ...built.map(({ target, path }) => ({
      file: npmFileOf(npmNameOf(target)),
      make: async () => executablePackage(target, readFileSync(path)),
    })),
    ...linux.map(({ target: { machine }, path }) => ({
      file: `${names.package}_${debianVersion}_${architectures[machine]}.deb`,
      make: async () => debianPackage(machine, readFileSync(path)),
    })),
    ...(linux.length === 0
      ? []
      : [
          {
            file: `${names.package}-${manifest.version}.oci.tar`,
            async make() {
              const platforms = linux.map(async ({ target, path }) => ({
                machine: target.machine,
                executable: readFileSync(path),
                library: await libraryOf(target),
              }))
              return image(await Promise.all(platforms), commit)
            },
          },
        ]),
    ...(url === undefined || digests.length < formulaTargets.length
      ? []
      : [
          {
            file: `${names.package}.rb`,
            make: async () => formula(url, Object.fromEntries(digests)),
          },
        ]),
  ]
}
