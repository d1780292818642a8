import manifest from '../../package.json'
import type { Commit } from '../build'
import { type Entry, gzip, sha256, tar, withDirectories } from './archive'
import { architectures } from './deb'
import { names } from './names'

/** What the image has for one machine. */
export type Platform = {
  machine: keyof typeof architectures
  executable: Uint8Array
  /** The C library. */
  library: readonly Entry[]
}

type Descriptor = { mediaType: string; digest: string; size: number }

const type = (name: string) => `application/vnd.oci.image.${name}`
/** The account without rights of other small images. */
const account = 65_532
const seconds = 1e9
const [program, file, dataDir] = [
  '/usr/local/bin/turnpike',
  '/etc/turnpike/merchants.toml',
  '/var/lib/turnpike',
]

/** As in deploy/Dockerfile: https://github.com/opencontainers/image-spec/blob/main/config.md */
const settings = {
  User: `${account}:${account}`,
  ExposedPorts: { '4020/tcp': {} },
  Env: ['PATH=/usr/local/bin'],
  Entrypoint: [program],
  Cmd: ['serve', '--config', file, '--data', dataDir],
  Volumes: { [dataDir]: {} },
  WorkingDir: dataDir,
  // Not in the specification, but read by Docker.
  Healthcheck: {
    Test: ['CMD', program, 'health', '--config', file],
    Interval: 30 * seconds,
    Timeout: 5 * seconds,
    StartPeriod: 30 * seconds,
    Retries: 3,
  },
}

/** Files beside the C library. The runtime itself has the certificates of authorities. */
const base: readonly Entry[] = [
  {
    path: 'etc/passwd',
    mode: 0o644,
    content: `root:x:0:0:root:/:/sbin/nologin\nnonroot:x:${account}:${account}::${dataDir}:/sbin/nologin\n`,
  },
  { path: 'etc/group', mode: 0o644, content: `root:x:0:\nnonroot:x:${account}:\n` },
  { path: 'etc/nsswitch.conf', mode: 0o644, content: 'hosts: files dns\n' },
  { path: 'etc/turnpike/', mode: 0o755 },
  { path: 'tmp/', mode: 0o1777 },
  // A new volume takes its owner from this directory.
  { path: `${dataDir.slice(1)}/`, mode: 0o700, owner: account },
]

/**
 * An image for several machines as an archive of the OCI image layout, which `skopeo`, `podman load` and
 * `docker load` read: https://github.com/opencontainers/image-spec/blob/main/image-layout.md
 */
export function image(platforms: readonly Platform[], commit: Commit | undefined): Buffer {
  const blobs = new Map<string, Uint8Array>()
  const add = (mediaType: string, content: Uint8Array | object): Descriptor => {
    const bytes = content instanceof Uint8Array ? content : Buffer.from(JSON.stringify(content))
    const digest = sha256(bytes)
    blobs.set(digest, bytes)
    return { mediaType: type(mediaType), digest: `sha256:${digest}`, size: bytes.length }
  }
  const annotations = {
    'org.opencontainers.image.title': names.package,
    'org.opencontainers.image.description': manifest.description,
    'org.opencontainers.image.version': manifest.version,
    'org.opencontainers.image.licenses': manifest.license,
    ...(commit?.modified === false && { 'org.opencontainers.image.revision': commit.id }),
  }
  const manifests = platforms.map(({ machine, executable, library }) => {
    const platform = { architecture: architectures[machine], os: 'linux' }
    // The C library changes less often than the program: a layer of its own.
    const layers = [
      [...library, ...base],
      [{ path: program.slice(1), mode: 0o755, content: executable }],
    ].map((entries) => tar(withDirectories(entries)))
    const config = add('config.v1+json', {
      ...platform,
      config: { ...settings, Labels: annotations },
      rootfs: { type: 'layers', diff_ids: layers.map((layer) => `sha256:${sha256(layer)}`) },
      history: ['the C library of Debian', 'the executable'].map((comment) => ({ comment })),
    })
    const packed = layers.map((layer) => add('layer.v1.tar+gzip', gzip(layer)))
    const parts = { config, layers: packed, annotations }
    const media = 'manifest.v1+json'
    return { ...add(media, { schemaVersion: 2, mediaType: type(media), ...parts }), platform }
  })
  const index = { schemaVersion: 2, mediaType: type('index.v1+json') }
  const all = add('index.v1+json', { ...index, manifests, annotations })
  const reference = {
    'org.opencontainers.image.ref.name': manifest.version,
    // The name after `docker load`.
    'io.containerd.image.name': `docker.io/library/${names.package}:${manifest.version}`,
  }
  const files: Record<string, string | Uint8Array> = {
    'oci-layout': JSON.stringify({ imageLayoutVersion: '1.0.0' }),
    'index.json': JSON.stringify({ ...index, manifests: [{ ...all, annotations: reference }] }),
  }
  for (const [digest, bytes] of blobs) files[`blobs/sha256/${digest}`] = bytes
  return tar(Object.entries(files).map(([path, content]) => ({ path, mode: 0o644, content })))
}
