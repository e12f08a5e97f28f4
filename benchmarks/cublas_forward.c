/* Built as libcublas.so.12: passes the calls that FAISS makes to the libcublas.so.13 of torch.
 *
 * The arguments of these functions are the same in both versions. A stub is one jump, so it needs
 * neither NVIDIA's headers nor the types of the arguments. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define FUNCTIONS(F)                                                      \
    F(cublasCreate_v2) F(cublasDestroy_v2) F(cublasSetStream_v2)          \
    F(cublasSetMathMode) F(cublasGetMathMode) F(cublasSgemmEx)            \
    F(cublasGemmEx) F(cublasGemmStridedBatchedEx)

static void missing(void) {
    fputs("libcublas.so.13 or a function of it is missing; add its folder to LD_LIBRARY_PATH\n",
          stderr);
    abort();
}

#define STUB(f)                                                           \
    __attribute__((visibility("hidden"))) void *to_##f = (void *)missing; \
    __asm__(".text\n.globl " #f "\n.type " #f ", @function\n" #f ":\n\tjmp *to_" #f "(%rip)\n");
FUNCTIONS(STUB)

__attribute__((constructor)) static void resolve(void) {
    void *library = dlopen("libcublas.so.13", RTLD_NOW | RTLD_GLOBAL), *found;
    if (library == NULL) return;
#define RESOLVE(f) if ((found = dlsym(library, #f)) != NULL) to_##f = found;
    FUNCTIONS(RESOLVE)
}
